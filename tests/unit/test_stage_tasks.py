"""How a batch is cut into tasks."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from exactbatch import Append, Json, OffsetRange, Pipeline, Tuning, Upsert
from exactbatch.batch.staging.shares import count_spark_tasks, distribute
from exactbatch.batch.staging.stager import stage_tasks
from exactbatch.batch.staging.staging_tables import StagingTables
from exactbatch.settings import Settings

LIFE = UUID(int=1)


def splits(parallelism: int, offsets: int = 5_000_000, **changes: Any) -> list[OffsetRange]:
    changes = {"sink": Append("public.t"), "tuning": Tuning(max_connections=8), **changes}
    pipeline = Pipeline(name="p", topics=("t",), value=Json("id int"), **changes)
    ranges = [OffsetRange("t", 0, 0, offsets, LIFE), OffsetRange("t", 1, 0, 10, LIFE)]
    settings = Settings(kafka={"bootstrap.servers": "localhost:9"}, postgres="")
    tasks = stage_tasks(pipeline, pipeline.traits, ranges, {}, StagingTables(1, 1), settings, parallelism)
    return [each.range for each in tasks]


@pytest.mark.parametrize("parallelism", [1, 4, 400])
def test_what_transform_gets_is_cut_in_same_way_on_any_cluster(parallelism):
    cut = splits(parallelism, transform="select * from records")
    assert cut == splits(8, transform="select * from records")
    assert len(cut) == 9


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [(199_000, 1), (400_000, 4), (1_600_000, 8), (2_400_000, 12), (50_000_000, 32)],
)
def test_what_transform_gets_is_cut_into_few_splits_that_are_worth_their_connections(offsets, expected):
    cut = splits(2, offsets, transform="select * from records", tuning=Tuning(max_connections=32))
    assert len(cut) == expected + 1  # the other partition has ten offsets


@pytest.mark.parametrize(
    "sink", [Append("public.t"), Upsert("public.t", key=("id",))], ids=["append", "upsert"]
)
def test_what_needs_no_transform_is_cut_for_the_cluster(sink):
    assert [len(splits(each, sink=sink)) for each in (1, 4, 400)] == [2, 5, 9]


def test_cutting_takes_ten_times_as_long_for_ten_times_as_many_partitions(monkeypatch):
    asked = 0
    size = OffsetRange.__len__

    def counted(range_: OffsetRange) -> int:
        nonlocal asked
        asked += 1
        return size(range_)

    monkeypatch.setattr(OffsetRange, "__len__", counted)
    pipeline = Pipeline(name="p", topics=("t",), value=Json("id int"), sink=Append("public.t"))
    settings = Settings(kafka={"bootstrap.servers": "localhost:9"}, postgres="")
    counts = []
    for partitions in (100, 1000):
        asked = 0
        ranges = [OffsetRange("t", partition, 0, 10, LIFE) for partition in range(partitions)]
        stage_tasks(pipeline, pipeline.traits, ranges, {}, StagingTables(1, 1), settings, 2)
        counts.append(asked)
    assert 0 < counts[1] <= 10 * counts[0]


@pytest.mark.parametrize(
    ("sizes", "tasks"),
    [
        ([10] * 1000, 8),  # four for each slot
        ([400] * 3000, 12),
        ([100_000] * 40, 32),  # max_connections
        ([10], 1),
    ],
)
def test_few_offsets_in_many_partitions_are_shared_among_few_tasks(sizes, tasks):
    each_range = [SimpleNamespace(range=OffsetRange("t", p, 0, n, LIFE)) for p, n in enumerate(sizes)]
    shares = distribute(each_range, count_spark_tasks(each_range, most=32, parallelism=2))
    assert len(shares) == tasks
    assert sorted(map(id, (task for share in shares for task in share))) == sorted(map(id, each_range))
