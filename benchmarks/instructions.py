"""Instructions per record, counted by valgrind: ``python -m benchmarks.instructions``.

For machines that are too busy for a clock: the count is the same to a per cent or so, whatever else runs. The records
come as a broker would send them, in lz4 batches, are unpacked as the consumer unpacks them, and go through a partition
and its replayers; rows are encoded as they would travel to Valkey and acknowledged in the loop's next turn. There is
neither broker nor store, so what their sockets cost is missing. "getmany" and "counted" are the bare loops of
``benchmarks.throughput``.

A case runs twice, with few records and with more, and the difference counts: what Python's start costs is in both.
`--time` prints microseconds of processor time instead, the least of many rounds, for machines that are quiet.
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, cast

from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from benchmarks.throughput import BODIES, KEYS, record
from pyrula.kafka import replayers
from pyrula.kafka.binding import Binding
from pyrula.kafka.buffer import Bounds
from pyrula.kafka.endings import RunEndings
from pyrula.kafka.fetched import Unpacking
from pyrula.kafka.garbage import collected_rarely
from pyrula.kafka.offsets import OffsetTracker
from pyrula.kafka.outputs import Outputs
from pyrula.kafka.partition import Partition
from pyrula.kafka.replayers import Replayers
from pyrula.workflows import SystemClock
from pyrula.workflows.codec import loads
from pyrula.workflows.group_commit import GroupCommit
from pyrula.workflows.loops import give_back, prepare
from pyrula.workflows.store.port import Batch, Token
from pyrula.workflows.store.valkey import wire
from pyrula.workflows.store.valkey.scripts import script

TP = TopicPartition("records", 0)
BARE = ("getmany", "counted")
CONTENDERS = (*BARE, *(body for body in BODIES if "step" in body or body == "empty"))
FETCHES, FETCH, BATCH, LZ4 = 3, 1_000, 500, 3
CONCURRENCY = 256


def fetched(first: int, count: int) -> bytes:
    """What a fetch brings: whole batches, from an offset on."""
    parts = []
    for base in range(first, first + count, BATCH):
        builder = DefaultRecordBatchBuilder(
            magic=2, compression_type=LZ4, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
            batch_size=1 << 20,
        )  # fmt: skip
        size = min(BATCH, first + count - base)
        for at in range(size):
            number = base + at
            builder.append(at, 1_735_689_600_000 + number, b"k%04d" % (number % KEYS), record(number), [])
        data = builder.build()
        data[:8] = base.to_bytes(8, "big")  # outside of what the checksum covers
        parts.append(bytes(data))
    return b"".join(parts)


def parts(data: bytes, first: int) -> PartitionRecords:
    return PartitionRecords(TP, MemoryRecords(data), [], first, None, None, True, "read_uncommitted")


async def bare(data: Sequence[tuple[int, bytes]], counting: bool) -> None:
    seen = 0
    for first, batch in data:
        for message in parts(batch, first):
            loads(message.value)["id"]
            if counting:
                seen += 1
                time.monotonic()


class Rig:
    """A partition and the replayers of its binding."""

    def __init__(self, body: str) -> None:
        binding = Binding(BODIES[body], topic=TP.topic, group="bench", max_concurrency=CONCURRENCY)
        endings = RunEndings(cast(Outputs, None), lambda: None)
        self.pool = endings.pool = Replayers(binding, endings, SystemClock())
        self._append = script("append")
        self.commits = GroupCommit(self._write)
        self.partition = Partition(
            TP,
            binding,
            shard=0,
            token=Token(1, 1),
            source=bytes(16),
            tracker=OffsetTracker(0),
            rows=[],
            known=None,
            commits=self.commits,
            bounds=Bounds(10**9, 10**12, 10**9, 10**12),
            fetch=lambda on: None,
            fenced=lambda fenced: None,
            standing=self.pool.standing,
            triggers=cast(Any, None),
        )
        self.pool.add(self.partition)

    async def _write(self, batches: Sequence[Batch]) -> list[Exception | None]:
        for batch in batches:
            wire.append(self._append, b"{p:1}p:k", b"{p:1}j:k:", batch, b"worker.1", 1000)
        await asyncio.sleep(0)
        return [None] * len(batches)

    async def run(self, data: Sequence[tuple[int, bytes]]) -> None:
        for first, batch in data:
            self.partition.receive(Unpacking(parts(batch, first)).take(FETCH))
            self.pool.offer(self.partition)
            while self.partition.buffer.records:  # noqa: ASYNC110 - a turn of the loop is what it waits for
                await asyncio.sleep(0)

    async def stop(self) -> None:
        self.partition.close()
        await self.pool.stop()
        await self.commits.close()


async def work(contender: str, fetches: int) -> float:
    """Seconds of processor time for so many fetches. As many as may be are made ready each time."""
    data = [(at * FETCH, fetched(at * FETCH, FETCH)) for at in range(FETCHES)][:fetches]
    prepare(asyncio.get_running_loop())
    collect_as_before = collected_rarely.want()
    rig = None if contender in BARE else Rig(contender)
    begun = time.process_time()
    if rig is None:
        await bare(data, contender == "counted")
    else:
        await rig.run(data)
    took = time.process_time() - begun
    if rig is not None:
        assert rig.partition.tracker.committable() == fetches * FETCH
        await rig.stop()
    collect_as_before()
    give_back(asyncio.get_running_loop())
    return took


def counted(contender: str, fetches: int) -> "subprocess.Popen[str]":
    """Run it under valgrind; the count is on standard error."""
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", sys.executable]
    command += ["-m", "benchmarks.instructions", "--child", contender, str(fetches)]
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def count_of(process: "subprocess.Popen[str]") -> int:
    _, said = process.communicate(timeout=3600)
    found = re.search(r"I +refs: +([\d,]+)", said)
    if process.returncode or found is None:
        raise SystemExit(said[-2000:])
    return int(found[1].replace(",", ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="*", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--time", action="store_true", help="microseconds, without valgrind")
    parser.add_argument("--rounds", type=int, default=20, help="of --time")
    options = parser.parse_args()
    if options.child:
        contender, fetches = options.child
        # Valgrind is slow: by the clock a pass would end after a few records, and their number would depend on it.
        replayers.PASS_SECONDS = float("inf")
        asyncio.run(work(contender, int(fetches)))
    elif options.time:
        best = dict.fromkeys(options.only, float("inf"))
        for _ in range(options.rounds):
            for contender in best:
                best[contender] = min(best[contender], asyncio.run(work(contender, FETCHES)) / FETCHES / FETCH)
        for contender, seconds in best.items():
            print(f"{contender:12}{seconds * 1e6:>10.2f} us")
    else:
        for contender in options.only:
            few, more = counted(contender, 1), counted(contender, FETCHES)
            each = (count_of(more) - count_of(few)) / (FETCHES - 1) / FETCH
            print(f"{contender:12}{each:>10,.0f} instructions", flush=True)


if __name__ == "__main__":
    main()
