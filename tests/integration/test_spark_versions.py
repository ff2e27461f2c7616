"""What batches do with Spark, once each: tests/versions/run_spark.py runs this with every supported version."""

from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from exactbatch.audit.run_audit import audit
from exactbatch.errors import TransformRefused
from support.replays import ranges
from support.topics import record
from support.transform_queries import LINEAGE

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["append", "upsert", "aggregate", "by_batch", "partition"])
def test_a_target_is_exact_after_an_advance_and_a_replay(play, kind, spark):
    played = play(kind)
    played.produce()
    played.bad()
    played.advance()
    played.replay()
    played.check()
    found = audit(played.pipeline, played.world.settings, values=True, spark=spark)
    assert found.is_exact, found


@pytest.fixture
def topic(make_topic):
    """20 records in two partitions, with ids from 0 to 19."""
    topic = make_topic(2)
    for number in range(20):
        topic.produce(record(number, "n" * (number % 4)), partition=number % 2)
    return topic


def with_function(records: DataFrame) -> DataFrame:
    return records.where("id % 4 > 0").select(
        "id",
        F.udf(lambda number: number * 2, "int")("id").alias("double"),
        F.struct("id", "name").alias("nested"),
        *LINEAGE.split(", "),
    )


def with_whole_rows(records: DataFrame) -> DataFrame:
    """The plan does not show the lineage: the rows are compared."""
    return with_function(records).mapInArrow(lambda batches: batches, with_function(records).schema)


TRANSFORMS: dict[str, dict[str, Any]] = {
    "query": {
        "transform": f"select id, id * 2 as double, struct(id, name) as nested, {LINEAGE} from records where id % 4 > 0"
    },
    "variant": {
        "transform": "select id, id * 2 as double, parse_json(to_json(struct(id, name))) as nested, "
        f"{LINEAGE} from records where id % 4 > 0"
    },
    "shuffled": {
        "transform": f"select id, id * 2 as double, struct(id, name) as nested, {LINEAGE} from records where "
        "id % 4 > 0 distribute by name"
    },
    "function": {"transform": with_function},
    "whole rows": {"transform": with_whole_rows, "allow_nondeterministic": ("<lambda>",)},
}


@pytest.mark.parametrize("kind", TRANSFORMS)
def test_the_rows_of_a_transform_are_exact_after_a_replay(world, replays, topic, make_pipeline, kind):
    pipeline = make_pipeline(topic, **TRANSFORMS[kind])
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.dropped) == (20, 15, 5)
    expected = [(n, 2 * n, {"id": n, "name": "n" * (n % 4)}) for n in range(20) if n % 4]
    columns = "id, double, nested"
    assert sorted(world.target(pipeline, columns), key=repr) == sorted(expected, key=repr)
    replays.run(pipeline, ranges((2, 7), partition=1, topic=topic))
    assert sorted(world.target(pipeline, columns), key=repr) == sorted(expected, key=repr)
    assert world.is_exact(pipeline)


def test_a_transform_that_depends_on_the_clock_is_refused_before_anything_is_written(
    world, topic, make_pipeline
):
    query = f"select id, now() as at, {LINEAGE} from records"
    message = world.refused(TransformRefused, make_pipeline(topic, transform=query))
    assert "now returns the time of the attempt" in message
