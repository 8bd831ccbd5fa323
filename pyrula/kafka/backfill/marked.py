"""Outputs that say which backfill they are of, so that no consumer takes them for live ones."""

from collections.abc import Sequence

from pyrula.kafka.outputs import Done, Producing
from pyrula.workflows.execution import Output

__all__ = ["HEADER", "MarkedOutputs"]

HEADER = "pyrula-backfill"


class MarkedOutputs:
    """Puts the header on what a backfill's runs produce, results and dead letters alike.

    A header that a record had from another backfill is replaced."""

    def __init__(self, outputs: Producing, backfill_id: str) -> None:
        self._outputs = outputs
        self._header = (HEADER, backfill_id.encode())

    def produce(self, outputs: Sequence[Output], done: Done) -> None:
        self._outputs.produce([self._marked(output) for output in outputs], done)

    def _marked(self, output: Output) -> Output:
        headers = [header for header in output.headers if header[0] != HEADER]
        return output._replace(headers=(*headers, self._header))
