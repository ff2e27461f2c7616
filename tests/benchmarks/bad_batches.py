"""What a batch costs in which all records are bad, and `max_rejects` allows them, compared with one of good records.

Loads topics of good records and of bad ones into an Append. Prints the seconds of the batches, from the plan to the
commit, and the ratio to the good ones.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Final

from bad_records import Case, Value, cases
from bench import HOME
from rich.console import Console
from runner import Servers, benchmark_servers, progress_on
from shapes import EVENTS
from topics import drop_topic, ensure_topic
from ways import one_transaction, register, run_batch, spark_session

from exactbatch import Append
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.spark import python_daemon
from exactbatch.ledger import Ledger
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from exactbatch.sinks.writers import find_writer

# Of each format, bad records that fail in different places: the syntax, the type of a field, what Postgres can store.
KINDS: Final = {
    "Json, two columns": ('{"id":"%d"}', '{"id":%d', '{"note":"%d\\u0000"}'),
    "Json": ('{"ratio":-4e38,"id":%d}', '{"price":1e-%d}', "500 levels"),
    "Debezium": ("value left out", "no position"),
    "Debezium, schema": ("half a pair", "time out of range"),
    "Flattened": ('{"id":%d,"note":"a\\u0000"}', '{"id":%d,"__op":"x"}'),
    "Avro, registry": ("U+0000 in text", "the body ends early", "decimal too large", "time before 4713 BC"),
    "Csv": ("%da,,,,,", "1,,,,,a\nb%d", "1,,,,,a\0b%d", "1,,1e39%d,,,", '1,,,,,"%d'),
}


def numbered(value: Value) -> Iterator[bytes]:
    """Yield values, one for each number."""
    return map(value, count(10))


def main() -> None:
    """Measure a batch of good records and one for each kind of bad ones, for each format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--formats", nargs="+", default=list(KINDS))
    parser.add_argument("--kinds", type=int, default=1, help="of bad records, for each format")
    arguments = parser.parse_args()
    console = Console(width=120)
    with cases() as found, progress_on(console) as progress, benchmark_servers(HOME, progress) as servers:
        engine = None
        for name in arguments.formats:
            kinds = KINDS[name][: arguments.kinds]
            good = 0.0
            for what, value in {
                "good": found[name].good,
                **{each: found[name].bad[each] for each in kinds},
            }.items():
                progress(f"{name}, {what!r}")
                topic = f"bad_{time.time_ns()}"
                shape = replace(EVENTS, name=topic, values=partial(numbered, value), different=arguments.rows)
                ensure_topic(servers.stack.kafka_properties, topic, arguments.rows, progress, shape)
                if engine is None:
                    place = servers.place(topic, arguments.rows, shape)
                    engine = DriverEngine(spark_session(place, properties=python_daemon.PROPERTIES))
                    measure(engine, servers, topic, arguments.rows, found[name], what)  # starts the workers
                seconds = measure(engine, servers, topic, arguments.rows, found[name], what)
                good = good or seconds
                console.print(f"{name}, {what!r}: {seconds:.1f} s, {seconds / good:.1f} x", markup=False)
                drop_topic(servers.stack.kafka_properties, topic)


def measure(engine: DriverEngine, servers: Servers, topic: str, rows: int, case: Case, what: str) -> float:
    """Return the seconds of a batch over a whole topic into a new target."""
    place = servers.place(topic, rows, EVENTS)
    name = f"bad_{time.time_ns()}"  # the benchmark's ledger knows the pipelines of earlier runs
    pipeline = replace(
        one_transaction(place),
        name=name,
        value=case.format_,
        sink=Append(f"public.{name}"),
        max_reject_share=1.0,
    )
    with closing(connect(place.postgres, application="benchmark")) as connection:
        register(place, pipeline)
        with transaction(connection) as cursor:
            find_writer(pipeline.traits).prepare(cursor, case.format_.columns)
        seconds = run_batch(engine, pipeline, Settings(kafka=place.kafka, postgres=place.postgres))
        with transaction(connection):
            (batch,) = Ledger(connection).batches.read_page(pipeline.name, limit=1)
        assert batch.rejected == (0 if what == "good" else rows), (what, batch.rejected)
        with transaction(connection) as cursor:
            cursor.execute(f"drop table public.{name}")
    return seconds["plan"] + seconds["process"]


if __name__ == "__main__":
    main()
