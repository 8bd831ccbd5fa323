"""A program: replays recorded bodies in this process, which has its own hash seed. JSON lines in, JSON lines out."""

import json
import sys
from typing import Any

from tests.engine.bodies import Interpreter, Steps
from tests.engine.rig import play


def replay(recording: dict[str, Any], tasks: bool) -> dict[str, Any]:
    steps = Steps(0)
    interpreter = Interpreter(recording["program"], steps)
    rows = [(index, data.encode()) for index, data in recording["rows"]]
    outcome, _ = play(interpreter.body, rows=rows, tasks=tasks)
    return {
        "status": outcome.status,
        "error": str(outcome.error),
        "value": outcome.value,
        "trace": interpreter.world.trace,
        "executed": steps.executed,
    }


if __name__ == "__main__":
    for line in sys.stdin:
        recording = json.loads(line)
        print(json.dumps([replay(recording, tasks) for tasks in (False, True)]))
