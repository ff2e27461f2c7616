"""exactbatch.testing: what a pipeline makes of records, without servers."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from exactbatch import (
    Aggregate,
    Append,
    Count,
    Debezium,
    Json,
    Max,
    Pipeline,
    Sum,
    Tables,
    Text,
    TopicPattern,
    Upsert,
    Window,
    WithKeyAndHeaders,
)
from exactbatch.errors import ConfigurationError, KeyOnTwoPartitions, TargetMismatch, TooManyRejects
from exactbatch.testing import Record, decode, load
from support.environment import DOCS, JOBS

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


@pytest.mark.parametrize("function", [decode, load])
def test_only_a_pipeline_can_be_tested(function):
    with pytest.raises(ConfigurationError, match="expected a Pipeline, found Tables.*tables.member"):
        function(Tables(name="t", topics=("t",), pipeline=lambda _: None), [])


def test_no_records():
    loaded = load(FLIGHTS, [])
    assert (loaded.rows, loaded.rejects, loaded.target, loaded.records) == ([], [], [], 0)


def test_offsets_count_the_records_of_a_partition():
    records = [Record("?", partition=1), Record("?"), Record("?", partition=1)]
    places = [(reject.partition, reject.offset) for reject in decode(FLIGHTS, records).rejects]
    assert places == [(0, 0), (1, 0), (1, 1)]


def test_an_array_without_elements_is_dropped():
    pipeline = Pipeline(
        name="items", topics=("t",), value=Json("sku text from 'items[].sku'"), sink=Append("public.item")
    )
    loaded = decode(pipeline, ['{"items": [{"sku": "a"}, {"sku": "b"}]}', '{"items": []}'])
    assert loaded.rows == [{"sku": "a"}, {"sku": "b"}]
    assert (loaded.records, loaded.dropped) == (2, 1)


def test_rejects_of_key_and_value_are_in_the_order_of_the_log():
    pipeline = replace(
        FLIGHTS,
        value=Json("id int, n int"),
        message_key=Json("id int"),
        sink=Upsert("public.flight", key=("id",)),
    )
    records = [
        Record('{"id":1,"n":"x"}', key='{"id":1}', partition=1),
        Record(None, key='{"id":"bad"}'),
        '{"id":1,"n":"x"}',
        Record(None, key='{"id":"bad"}'),
    ]
    rejects = decode(pipeline, records).rejects
    assert [(each.partition, each.offset) for each in rejects] == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_keys_and_headers_are_columns():
    value = WithKeyAndHeaders(
        Json("id int"), key=Text("k"), headers={"trace": Text("trace")}, all_headers="all_headers"
    )
    pipeline = Pipeline(name="f", topics=("t",), value=value, sink=Append("public.f"))
    records = [
        Record('{"id": 1}', key=b"a", headers=[("trace", "x"), ("trace", b"y")]),
        Record('{"id": 2}', headers={"trace": None}),
        Record('{"id": 3}', headers={"trace": b"\xff"}),
    ]
    loaded = decode(pipeline, records)
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
        message_key=Json("id int"),
        sink=Upsert("public.c", ("id",)),
    )
    loaded = decode(pipeline, ['{"id": 1, "a": 2}', Record(None, '{"id": 1}'), '{"a": 3}'])
    assert loaded.rows == [{"id": 1, "a": 2, "deleted": False}, {"id": 1, "a": None, "deleted": True}]
    assert [reject.reason for reject in loaded.rejects] == ["column 'id': the key is null"]


def test_times_that_python_cannot_hold_are_text():
    pipeline = Pipeline(name="t", topics=("t",), value=Json("at timestamptz"), sink=Append("public.t"))
    loaded = decode(pipeline, ['{"at": "2024-01-01T00:00:00Z"}', '{"at": "0000-01-01T00:00:00Z"}'])
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
        decode(FLIGHTS, [record])


def test_a_pattern_needs_the_topic_of_each_record():
    pipeline = Pipeline(
        name="f", topics=TopicPattern("f[0-9]"), value=Json("id int"), sink=Append("public.f")
    )
    assert decode(pipeline, [Record('{"id": 1}', topic="f1")]).rows == [{"id": 1}]
    with pytest.raises(ConfigurationError, match="Give the record a topic"):
        decode(pipeline, ['{"id": 1}'])


def keyed(columns: str = "id int, a text, v int", **changes: Any) -> Pipeline:
    options = {"sink": Upsert("public.t", ("id",), "v"), "max_reject_share": 1.0, **changes}
    return Pipeline(name="p", topics=("t",), value=Json(columns), **options)


def test_an_upsert_has_the_latest_change_of_each_key():
    records = [
        '{"id": 1, "a": "new", "v": 2}',
        Record('{"id": 1, "a": "old", "v": 1}', partition=1),
        '{"id": 2, "a": "none"}',
        '{"id": 3, "v": 5}',
    ]
    pipeline = keyed()
    expected = [
        {"id": 1, "a": "new", "v": 2},
        {"id": 2, "a": "none", "v": None},
        {"id": 3, "a": None, "v": 5},
    ]
    assert load(pipeline, records).target == expected


def test_deletes_truncates_and_unchanged_values_of_debezium():
    def event(op: str, lsn: int, row: dict[str, Any] | None = None, before: Any = None) -> str:
        source = {"lsn": lsn, "sequence": f'["{lsn - 1}","{lsn}"]', "table": "t"}
        return json.dumps({"op": op, "after": row, "before": before, "source": source})

    out = "__debezium_unavailable_value"
    records = [
        event("c", 1, {"id": 1, "a": "before the truncate"}),
        event("u", 6, {"id": 1, "a": out}),  # the truncate ended the row that had the value
        event("t", 5),
        event("c", 7, {"id": 2, "a": "kept"}),
        event("u", 8, {"id": 2, "a": out}),
        event("c", 9, {"id": 3, "a": "deleted"}),
        event("d", 10, before={"id": 3, "a": None}),
    ]
    pipeline = replace(
        keyed(),
        value=Debezium("id int, a text", version="postgres", truncate="apply"),
        sink=Upsert("public.t", ("id",), ("commit_lsn", "lsn")),
    )
    loaded = load(pipeline, records)
    assert loaded.target == [{"id": 2, "a": "kept", "commit_lsn": 7, "lsn": 8}]
    [reject] = loaded.rejects
    assert reject.offset == 1
    assert reject.reason.startswith("column 'a': the source left the value out because it had not changed")


def test_a_key_on_two_partitions_is_the_error_of_a_batch():
    pipeline = keyed(sink=Upsert("public.t", ("id",)))
    loaded = load(pipeline, ['{"id": 1}', Record('{"id": 1}', partition=1)])
    assert len(loaded.rows) == 2
    with pytest.raises(KeyOnTwoPartitions, match=r"t\[0\] and t\[1\]"):
        _ = loaded.target


def test_two_changes_of_a_key_in_one_record_are_an_error():
    pipeline = keyed("id int from 'rows[].id', v int from 'rows[].v'")
    assert load(pipeline, ['{"rows": [{"id": 1, "v": 1}, {"id": 1, "v": 2}]}']).target == [{"id": 1, "v": 2}]
    loaded = load(pipeline, ['{"rows": [{"id": 1, "v": 1}, {"id": 1, "v": 1}]}'])
    with pytest.raises(TargetMismatch, match=r"several changes of one key.* t\[0\] offset 0"):
        _ = loaded.target


def test_an_aggregate_has_a_row_for_each_group_and_window():
    pipeline = Pipeline(
        name="p",
        topics=("t",),
        value=Json("k text, at timestamptz, n numeric(4,2)"),
        sink=Aggregate(
            "public.t",
            ("k", Window("at", "1 hour")),
            {"n": Count(), "total": Sum("n"), "worst": Max("n")},
            allowed_lateness="1 hour",
        ),
        max_rejects=1,
    )
    records = [
        '{"k": "a", "at": "2024-01-01T00:59:59.999999Z", "n": 1.25}',
        '{"k": "a", "at": "2024-01-01T00:00:00Z", "n": 2}',
        '{"at": "2024-01-01T02:00:00Z"}',
        '{"k": "a"}',
    ]
    loaded = load(pipeline, records)
    first = datetime(2024, 1, 1, tzinfo=UTC)
    later = {"k": None, "at_window": first + timedelta(hours=2), "n": 1, "total": None, "worst": None}
    assert loaded.target == [
        {**later, "final": False, "revisions": 0},
        {"k": "a", "at_window": first, "n": 2, "total": Decimal("3.25"), "worst": Decimal("2.00")}
        | {"final": True, "revisions": 0},
    ]
    assert [each.reason for each in loaded.rejects] == [
        "column 'at': expected the time of the event, in the years 1 to 9999, found null"
    ]


def test_together_has_several_targets():
    pipeline = keyed(sink=[Append("public.raw"), Upsert("public.t", ("id",), "v")])
    loaded = load(pipeline, ['{"id": 1, "v": 1}', '{"id": 1, "v": 2}'])
    assert loaded.targets == {
        "public.raw": [
            {"id": 1, "a": None, "v": 1, "deleted": False},
            {"id": 1, "a": None, "v": 2, "deleted": False},
        ],
        "public.t": [{"id": 1, "a": None, "v": 2}],
    }
    with pytest.raises(ConfigurationError, match=r"targets\[…\] with one of 'public.raw', 'public.t'"):
        _ = loaded.target


def test_a_batch_with_too_many_rejects_has_no_target():
    loaded = load(replace(FLIGHTS, max_rejects=1), ["{", "{", '{"id": 1}'])
    assert loaded.rows == [{"id": 1}]
    with pytest.raises(TooManyRejects, match=r"max_rejects=1 allows 1.*flights\[0\] offset 0"):
        _ = loaded.target


UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"


@pytest.mark.parametrize(
    ("pipeline", "records", "target"),
    [
        (keyed("id numeric, v int"), [{"id": "1.0", "v": 1}, {"id": 1, "v": 2}], [{"id": "1", "v": 2}]),
        (keyed("id uuid, v int"), [{"id": UUID.upper(), "v": 1}, {"id": UUID}], [{"id": UUID, "v": 1}]),
        (keyed("id int, v text"), [{"id": 1, "v": "é"}, {"id": 1, "v": "z"}], [{"id": 1, "v": "é"}]),
        (
            keyed(sink=Aggregate("public.t", ("id",), {"most": Max("a")})),
            [{"id": 1, "a": "z"}, {"id": 1, "a": "é"}],
            [{"id": 1, "most": "é"}],
        ),
    ],
)
def test_postgres_compares_keys_versions_and_text(pipeline, records, target):
    assert load(pipeline, map(json.dumps, records)).target == target


def test_a_uuid_in_the_usual_form_is_a_key():
    pipeline, records = keyed("id uuid, v int"), [f'{{"id": "{UUID}", "v": {v}}}' for v in (1, 2)]
    assert load(pipeline, records).target == [{"id": UUID, "v": 2}]
    assert decode(pipeline, records).unverified == {"id": "uuid"}


def test_checks_never_pass_unseen():
    with pytest.raises(ConfigurationError, match="has checks, and Postgres alone can evaluate them"):
        decode(replace(FLIGHTS, checks=("id > 0",)), ['{"id": -1}'])
    loaded = load(replace(FLIGHTS, checks=("id > 0",), max_rejects=1), ['{"id": -1}'])
    assert (loaded.target, [each.reason for each in loaded.rejects]) == (
        [],
        ['check "id > 0" failed: id = -1'],
    )


def test_the_columns_that_only_postgres_can_refuse_are_named():
    pipeline = replace(FLIGHTS, value=Json("id int, doc jsonb, name varchar(3), n numeric(5,2)"))
    loaded = decode(pipeline, ['{"id": 1, "name": "too long"}'])
    assert loaded.unverified == {"doc": "jsonb", "name": "character varying(3)"}


def test_importing_it_is_cheap_and_a_test_without_a_transform_starts_no_spark():
    program = (
        "import sys, exactbatch.testing\n"
        "assert not {'pyarrow', 'pyspark', 'confluent_kafka', 'airflow'} & {*sys.modules}, 'import'\n"
        "from exactbatch import *\n"
        "p = Pipeline(name='p', topics=('t',), value=Json('id int'), sink=Append('public.t'))\n"
        "exactbatch.testing.load(p, ['{}']).target\n"
        "assert not {'pyspark', 'py4j', 'airflow'} & {*sys.modules}, 'load'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_test_of_the_documentation_passes(tmp_path):
    [test, *_] = re.findall(r"```python\n(.*?)```", (DOCS / "testing.md").read_text(), re.DOTALL)
    (tmp_path / "test_flights.py").write_text(test)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_flights.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(JOBS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
