"""Which runs need nothing more once their rows are durable, and being done with them: many at a time.

Nearly all do: the body has ended, has sent nothing and left nothing behind, and the binding has no output topic and
keeps no completed runs. All others are the endings'. A run that waits for nothing but a flush *rides* on it.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from pyrula.kafka.binding import Binding
from pyrula.kafka.deaths import Mark
from pyrula.kafka.events import BindingStats
from pyrula.kafka.partition import Partition, RecordRun
from pyrula.kafka.record import RawRecord
from pyrula.kafka.serde import RecordError
from pyrula.kafka.shares import Shares
from pyrula.workflows.execution import Outcome
from pyrula.workflows.group_commit import Flush

__all__ = ["Completions", "Endings"]


class Endings(Protocol):
    """What becomes of a run that can't simply be counted as done."""

    def end(self, run: RecordRun, outcome: Outcome) -> None: ...

    def refuse(self, partition: Partition, record: RawRecord, error: RecordError) -> None: ...

    def broken(self, partition: Partition, record: RawRecord, error: Exception) -> None: ...

    def condemn(self, partition: Partition, record: RawRecord, mark: Mark) -> None: ...


class Completions:
    """Of one binding's runs. `plain` says that it has no output topic and keeps no completed runs.

    `offer` is called for a partition whose lanes may have gone on, and `told`, if it is there, for each complete run.
    """

    def __init__(
        self,
        binding: Binding,
        stats: BindingStats,
        shares: Shares,
        endings: Endings,
        offer: Callable[[Partition], None],
    ) -> None:
        self.plain = binding.output is None and binding.keep != "all"
        self.told: Callable[[RecordRun], None] | None = None
        self._stats = stats
        self._shares = shares
        self._endings = endings
        self._offer = offer

    def ended(self, run: RecordRun, outcome: Outcome) -> None:
        """A body has ended. If nothing but its rows is to come it is completed together with others."""
        partition = run.partition
        if (
            outcome.status != "completed"
            or run.outputs is not None
            or not self.plain
            or run.host is not partition
            or run.leftovers
        ):
            self._endings.end(run, outcome)
        elif partition.closed or run.durable:
            self._shares.count(partition, -1)
            self.completed(partition, [run.origin], [run])
        elif not self.rides(run):
            self._shares.count(partition, -1)
            self._offer(partition)

    def rides(self, run: RecordRun) -> bool:
        """Whether nothing is to come of a run whose body has completed but its rows. Then its record is done with their
        flush, and the run may be another's."""
        flush, partition = run.flush, run.partition
        if (
            flush is None
            or flush.done
            or run.outputs is not None
            or not self.plain
            or run.host is not partition
            or run.leftovers
            or partition.closed
        ):
            return False
        if self.told is None:
            flush.riders.append(run.origin)
        else:
            run.rides = flush
            flush.riders.append(run)
        return True

    def settled(self, partition: Partition, flush: Flush) -> list[RecordRun]:
        """A flush is settled: with bodies that had ended before it is done. Answers those that are to go on."""
        riders, flush.riders = flush.riders, []
        done = [rider for rider in riders if type(rider) is not RecordRun]
        told: list[RecordRun] = []
        resting: list[RecordRun] = []
        if len(done) < len(riders):
            for run in riders:
                if type(run) is not RecordRun or run.rides is not flush:
                    continue
                if run.drive is not None:
                    resting.append(run)
                else:
                    run.rides = None
                    done.append(run.origin)
                    told.append(run)
        if done:
            self._shares.count(partition, -len(done))
            if flush.error is None:
                self.completed(partition, done, told)
            else:
                self._offer(partition)
        return resting

    def completed(self, partition: Partition, records: Sequence[RawRecord], runs: Sequence[RecordRun]) -> None:
        """Nothing is left to be done for these records, which are no longer in flight. `runs`: those to tell of."""
        if not partition.closed:
            partition.complete(records)
            self._stats.completed += len(records)
            if self.told is not None:
                for run in runs:
                    self.told(run)
        self._offer(partition)
