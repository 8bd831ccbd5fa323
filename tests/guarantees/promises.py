"""What Pyrula promises of a bound topic, each promise with the observer that looks for a breach of it.

An observer reads only what bodies wrote into their file and what the output topic holds, never Pyrula's own word.
Workers killed, frozen or cut off may repeat what was in progress then: at most `interrupted` times `concurrency`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.guarantees.observers import Line, done, out_of_order, overlaps, repeated_steps
from tests.services.topics import Stored


class Evidence(NamedTuple):
    """What a group did. `records` are all of its topic, as (partition, offset); `outputs` are of its output topic, each
    with the key of its record and ``<partition> <offset>`` as its value."""

    lines: Sequence[Line]
    records: set[tuple[int, int]]
    outputs: Sequence[Stored]
    interrupted: int
    concurrency: int

    @property
    def allowance(self) -> int:
        """How much may have been done twice."""
        return self.interrupted * self.concurrency


def at_least_once(evidence: Evidence) -> list[str]:
    """Every record's body came to its end, and its output is there."""
    ended = set(done(evidence.lines))
    produced = {_record_of(output) for output in evidence.outputs}
    missing = [f"{record} never completed" for record in evidence.records - ended]
    return missing + [f"{record} has no output" for record in evidence.records - produced]


def key_order(evidence: Evidence) -> list[str]:
    """The records of a key completed in their order."""
    return [f"key {key} completed out of order" for key in out_of_order(evidence.lines)]


def one_per_key(evidence: Evidence) -> list[str]:
    """No two steps of a key were in progress at once. A process that was killed or frozen ends its own by no line, so
    only what one process did is compared with itself."""
    processes = {line.pid for line in evidence.lines}
    return [
        f"process {pid}: {most} steps of key {key} at once"
        for pid in processes
        for key, most in overlaps(line for line in evidence.lines if line.pid == pid).items()
    ]


def step_once(evidence: Evidence) -> list[str]:
    """No step that ended ran again, but for those in progress when a worker was interrupted."""
    cut = {(line.run, line.step) for line in evidence.lines if line.what == "cut"}
    again = {name: times for name, times in repeated_steps(evidence.lines).items() if name not in cut}
    if sum(again.values()) <= evidence.allowance:
        return []
    return [f"{sum(again.values())} steps ran again (allowed: {evidence.allowance}): {sorted(again)[:20]}"]


def outputs_in_order(evidence: Evidence) -> list[str]:
    """A key's outputs first appear in the order of its records, its last word is of its last record, and no more are
    there twice than were in progress at an interruption."""
    broken = []
    order: dict[bytes | None, list[tuple[int, int]]] = defaultdict(list)
    for output in evidence.outputs:
        order[output.key].append(_record_of(output))
    for key, records in order.items():
        firsts = list(dict.fromkeys(records))
        if firsts != sorted(firsts):
            broken.append(f"outputs of key {key!r} are out of order")
        if records[-1] != max(records):
            broken.append(f"the last output of key {key!r} is of {records[-1]}, not of {max(records)}")
    twice = sum(count - 1 for count in Counter(_record_of(output) for output in evidence.outputs).values())
    if twice > evidence.allowance:
        broken.append(f"{twice} outputs were sent again (allowed: {evidence.allowance})")
    return broken


def output_once(evidence: Evidence) -> list[str]:
    """Each record has exactly one output, whatever happened: what exactly_once adds."""
    counts = Counter(_record_of(output) for output in evidence.outputs)
    return [f"{record} has {count} outputs" for record, count in counts.items() if count > 1]


PROMISES: dict[str, Callable[[Evidence], list[str]]] = {
    "AtLeastOnce": at_least_once,
    "KeyOrder": key_order,
    "OnePerKey": one_per_key,
    "StepOnce": step_once,
    "OutputsInOrder": outputs_in_order,
}


def broken_promises(evidence: Evidence) -> dict[str, list[str]]:
    """Breaches by the promise's name; empty when all of them were kept."""
    return {name: breaches for name, promise in PROMISES.items() if (breaches := promise(evidence))}


def _record_of(output: Stored) -> tuple[int, int]:
    partition, offset = (output.value or b"").split()
    return int(partition), int(offset)
