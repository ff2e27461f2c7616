"""What a batch costs more if the target refuses rows.

Loads topics of small records into targets with one constraint each: one without a refused row, one with a single one,
and one with a thousand. Prints the seconds of the batches, from the plan to the commit, and the ratio to the first.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Final

from bench import HOME
from rich.console import Console
from runner import benchmark_servers, progress_on
from shapes import Shape
from topics import drop_topic, ensure_topic
from ways import Place, one_transaction, register, run_batch, spark_session

from exactbatch import Append, Json, Upsert
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.spark import python_daemon
from exactbatch.ledger import Ledger
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from exactbatch.sinks.writers import find_writer

COLUMNS: Final = Json("id int, name text, size int")
# A refused row has the name of the first one, and a size below 0.
DDL: Final = {
    "none": "",
    "check": "alter table {t} add constraint u check (size >= 0)",
    "unique": "create unique index on {t} (name)",
    "deferred": "alter table {t} add constraint u unique (name) deferrable initially deferred",
    "trigger": "create trigger no before insert or update on {t} for each row execute function no()",
}
NO: Final = """
create or replace function no() returns trigger language plpgsql as $$
begin if new.size < 0 then raise 'no such size'; end if; return new; end $$
"""
SINKS: Final = {
    "Append": Append,
    "Upsert": partial(Upsert, key=("id",)),
    "Upsert without history": partial(Upsert, key=("id",), history=False),
}
BAD: Final = (0, 1, 1_000)


def values(rows: int, bad: int) -> Iterator[bytes]:
    """Yield records, of each `rows / bad` one in the middle with a row that is refused: a statement that writes all of
    them ends there, earlier or later for others."""
    every = rows // bad if bad else 2 * rows + 2
    for number in count():
        name, size = ("name 0", -1) if number % every == every // 2 else (f"name {number}", number)
        yield b'{"id":%d,"name":"%s","size":%d}' % (number, name.encode(), size)


def main() -> None:
    """Measure each kind of constraint with each kind of sink."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--kinds", nargs="+", default=list(DDL)[1:])
    parser.add_argument("--sinks", nargs="+", default=list(SINKS))
    arguments = parser.parse_args()
    console = Console()
    with progress_on(console) as progress, benchmark_servers(HOME, progress) as servers:
        places = {}
        for bad in BAD:
            topic = f"refused_{bad}"
            shape = Shape(
                name=topic,
                title=topic,
                value=COLUMNS,
                values=partial(values, arguments.rows, bad),
                different=arguments.rows,
                sums="",
            )
            ensure_topic(servers.stack.kafka_properties, topic, arguments.rows, progress, shape)
            places[bad] = servers.place(topic, arguments.rows, shape)
        engine = DriverEngine(spark_session(places[0], properties=python_daemon.PROPERTIES))
        measure(engine, places[0], "none", "Append")  # starts the workers
        for kind in arguments.kinds:
            for sink in arguments.sinks:
                progress(f"{kind}, {sink}")
                clean, *refused = (measure(engine, places[bad], kind, sink) for bad in BAD)
                ratios = ", ".join(
                    f"{bad:,} refused {seconds:.1f} s ({seconds / clean:.2f} x)"
                    for bad, seconds in zip(BAD[1:], refused, strict=True)
                )
                console.print(f"{kind}, {sink}: none {clean:.1f} s, {ratios}")
        for place in places.values():
            drop_topic(place.kafka, place.topic)


def measure(engine: DriverEngine, place: Place, kind: str, sink: str) -> float:
    """Return the seconds of a batch over a whole topic into a new target."""
    settings = Settings(kafka=place.kafka, postgres=place.postgres)
    name = f"refusing_{time.time_ns()}"  # the benchmark's ledger knows the pipelines of earlier runs
    table = f"public.{name}"
    pipeline = replace(one_transaction(place), name=name, sink=SINKS[sink](table), max_rejects=place.rows)
    bad = int(place.topic.rpartition("_")[2])
    with closing(connect(place.postgres, application="benchmark")) as connection:
        with transaction(connection) as cursor:
            cursor.execute(NO)
        register(place, pipeline)
        with transaction(connection) as cursor:
            find_writer(pipeline.traits).prepare(cursor, COLUMNS.columns)
            if DDL[kind]:
                cursor.execute(DDL[kind].format(t=table))
        seconds = run_batch(engine, pipeline, settings)
        with transaction(connection):
            (batch,) = Ledger(connection).batches.read_page(pipeline.name, limit=1)
        assert batch.rejected == bad, (batch.rejected, bad)
        with transaction(connection) as cursor:
            for suffix in ("", "_change", "_deleted"):
                cursor.execute(f"drop table if exists {table}{suffix}")
    return seconds["plan"] + seconds["process"]


if __name__ == "__main__":
    main()
