"""exactbatch.testing: what a pipeline makes of records, without servers."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from exactbatch import Append, Json, Pipeline, Text, TopicPattern, Upsert, WithMessage
from exactbatch.errors import ConfigurationError
from exactbatch.testing import Record, load

FLIGHTS = Pipeline(name="flights", topics=("flights",), value=Json("id int"), sink=Append("public.flight"))


def test_rows_rejects_and_counts_of_an_append():
    loaded = load(
        replace(FLIGHTS, max_rejects=1),
        [b'{"id": 1}', '{"id": 2}', None, Record('{"id": "x"}', key="k", partition=3)],
    )
    assert loaded.rows == loaded.target == [{"id": 1}, {"id": 2}]
    [reject] = loaded.rejects
    assert (reject.topic, reject.partition, reject.offset) == ("flights", 3, 0)
    assert (reject.value, reject.key) == (b'{"id": "x"}', b"k")
    assert reject.reason == "column 'id', integer: expected number, found string"
    assert (loaded.records, loaded.tombstones, loaded.dropped) == (4, 1, 0)


def test_no_records():
    loaded = load(FLIGHTS, [])
    assert (loaded.rows, loaded.rejects, loaded.target, loaded.records) == ([], [], [], 0)


def test_offsets_count_the_records_of_a_partition():
    records = [Record("?", partition=1), Record("?"), Record("?", partition=1)]
    places = [(reject.partition, reject.offset) for reject in load(FLIGHTS, records).rejects]
    assert places == [(0, 0), (1, 0), (1, 1)]


def test_an_array_without_elements_is_dropped():
    pipeline = Pipeline(
        name="items", topics=("t",), value=Json("sku text from 'items[].sku'"), sink=Append("public.item")
    )
    loaded = load(pipeline, ['{"items": [{"sku": "a"}, {"sku": "b"}]}', '{"items": []}'])
    assert loaded.rows == [{"sku": "a"}, {"sku": "b"}]
    assert (loaded.records, loaded.dropped) == (2, 1)


def test_keys_and_headers_are_columns():
    value = WithMessage(Json("id int"), key=Text("k"), header={"trace": Text("trace")}, headers="all_headers")
    pipeline = Pipeline(name="f", topics=("t",), value=value, sink=Append("public.f"))
    records = [
        Record('{"id": 1}', key=b"a", headers=[("trace", "x"), ("trace", b"y")]),
        Record('{"id": 2}', headers={"trace": None}),
        Record('{"id": 3}', headers={"trace": b"\xff"}),
    ]
    loaded = load(pipeline, records)
    assert loaded.rows == [
        {"id": 1, "k": "a", "trace": "y", "all_headers": '[["trace", "eA=="], ["trace", "eQ=="]]'},
        {"id": 2, "k": None, "trace": None, "all_headers": '[["trace", null]]'},
    ]
    assert loaded.rejects[0].reason.startswith("header 'trace': ")


def test_a_tombstone_is_a_delete_in_an_upsert():
    pipeline = Pipeline(
        name="c",
        topics=("t",),
        value=Json("id int, a int"),
        key=Json("id int"),
        sink=Upsert("public.c", ("id",)),
    )
    loaded = load(pipeline, ['{"id": 1, "a": 2}', Record(None, '{"id": 1}'), '{"a": 3}'])
    assert loaded.rows == [{"id": 1, "a": 2, "deleted": False}, {"id": 1, "a": None, "deleted": True}]
    assert [reject.reason for reject in loaded.rejects] == ["column 'id': the key is null"]


def test_times_that_python_cannot_hold_are_text():
    pipeline = Pipeline(name="t", topics=("t",), value=Json("at timestamptz"), sink=Append("public.t"))
    loaded = load(pipeline, ['{"at": "2024-01-01T00:00:00Z"}', '{"at": "0000-01-01T00:00:00Z"}'])
    assert loaded.rows == [{"at": datetime(2024, 1, 1, tzinfo=UTC)}, {"at": "0001-01-01 00:00:00+00 BC"}]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Record("", topic="others"), "its topic is 'others', and pipeline 'flights' loads"),
        (Record("", partition=-1), "its partition is -1"),
        (Record("", timestamp=datetime(2024, 1, 1)), "has no time zone"),
    ],
)
def test_a_record_that_the_pipeline_cannot_get_is_an_error(record, message):
    with pytest.raises(ConfigurationError, match=message):
        load(FLIGHTS, [record])


def test_a_pattern_needs_the_topic_of_each_record():
    pipeline = Pipeline(
        name="f", topics=TopicPattern("f[0-9]"), value=Json("id int"), sink=Append("public.f")
    )
    assert load(pipeline, [Record('{"id": 1}', topic="f1")]).rows == [{"id": 1}]
    with pytest.raises(ConfigurationError, match="Give the record a topic"):
        load(pipeline, ['{"id": 1}'])
