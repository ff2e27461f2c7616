"""Truncates of Debezium that are applied: what they decode to, and which pipelines can apply them."""

import json
from typing import Any

import pyarrow as pa
import pytest

from exactbatch import (
    Aggregate,
    Append,
    Count,
    Debezium,
    Json,
    Pipeline,
    TopicPattern,
    Upsert,
    WithKeyAndHeaders,
)
from exactbatch.errors import ConfigurationError
from exactbatch.formats.decoders import find_decoder
from exactbatch.formats.message.decoder import RecordDecoder
from exactbatch.formats.upsert_changes import as_changes
from support.connect_avro import avro_body, avro_schema
from support.debezium_types import envelope, typed
from support.registry import registry_server

APPLIES = Debezium("id int, name text", version="postgres", truncate="apply")
SINK = Upsert("public.t", key=("id",), version=("commit_lsn", "lsn"))


def event(op: str, lsn: int | None, before: Any = None, after: Any = None) -> dict[str, Any]:
    sequence = None if lsn is None else f'["{lsn - 1}","{lsn}"]'
    source = {"lsn": lsn, "sequence": sequence, "table": "t"}
    return {"before": before, "after": after, "op": op, "source": source}


EVENTS: list[Any] = [
    event("c", 1, after={"id": 1, "name": "a"}),
    event("t", 2),
    event("d", 3, before={"id": 1, "name": None}),
    event("d", 4, before={"id": None, "name": None}),
    event("t", None),
    None,
    event("t", 5),
]
CHANGES = [
    {"id": 1, "name": "a", "commit_lsn": 0, "lsn": 1, "deleted": False},
    {"id": None, "name": None, "commit_lsn": 1, "lsn": 2, "deleted": True},
    {"id": 1, "name": None, "commit_lsn": 2, "lsn": 3, "deleted": True},
    {"id": None, "name": None, "commit_lsn": 4, "lsn": 5, "deleted": True},
]


def decode(form: Debezium, values: list[bytes | None]) -> Any:
    """The changes of an Upsert, as a batch stages them."""
    array = pa.array(values, pa.binary())
    changes = as_changes(
        find_decoder(form).decode(array), array, array, None, ("id",), tombstones_delete=False
    )
    assert (changes.kept.to_pylist(), changes.tombstones) == ([0, 1, 2, 6], 1)
    (no_key, no_key_reason), (no_lsn, no_lsn_reason) = changes.rejects
    assert (no_key, no_key_reason) == (3, "column 'id': the key is null")
    assert no_lsn == 4
    assert "the event has no source.sequence, which orders the changes" in no_lsn_reason
    return changes.rows.to_pylist()


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_truncate_is_a_delete_without_a_key(wrapped):
    schema = envelope(
        {"id": typed("int32"), "name": typed("string")}, {"lsn": typed("int64"), "sequence": typed("string")}
    )
    values = [each if each is None or not wrapped else {"schema": schema, "payload": each} for each in EVENTS]
    encoded = [None if each is None else json.dumps(each, separators=(",", ":")).encode() for each in values]
    assert decode(APPLIES, encoded) == CHANGES


def test_a_truncate_in_avro():
    schema = envelope(
        {"id": typed("int32"), "name": typed("string")}, {"lsn": typed("int64"), "sequence": typed("string")}
    )
    with registry_server() as registry:
        registry.has(7, avro_schema(schema))
        form = Debezium("id int, name text", version="postgres", truncate="apply", registry=registry.address)
        header = b"\x00\x00\x00\x00\x07"
        values = [None if each is None else header + avro_body(schema, each) for each in EVENTS]
        assert decode(form, values) == CHANGES


def test_whatever_row_a_truncate_has_it_has_no_key():
    values = pa.array([json.dumps(event("t", 1, before={"id": 5, "name": "x"})).encode()], pa.binary())
    changes = as_changes(
        find_decoder(APPLIES).decode_with_unavailable(values),
        values,
        values,
        None,
        ("id",),
        tombstones_delete=False,
    )
    assert changes.rows.column("id").to_pylist() == [None]


def test_a_truncate_next_to_columns_of_the_message():
    class Keys:
        def keys(self) -> pa.BinaryArray:
            return pa.array([b'{"k": 1}', b'{"k": 2}', b"bad"], pa.binary())

    values = [event("c", 1, after={"id": 1}), event("t", 2), event("t", 3)]
    encoded = pa.array([json.dumps(each).encode() for each in values], pa.binary())
    form = WithKeyAndHeaders(APPLIES, key=Json("k int"))
    decoded = RecordDecoder(form).decode(encoded, Keys())
    changes = as_changes(decoded, encoded, encoded, None, ("id", "k"), tombstones_delete=False)
    assert [(row["id"], row["k"]) for row in changes.rows.to_pylist()] == [(1, 1), (None, None)]
    assert [at for at, _ in changes.rejects] == [2]


def pipeline(**options: Any) -> Pipeline:
    return Pipeline(**{"name": "p", "topics": ("t",), "value": APPLIES, "sink": SINK} | options)


def test_a_sink_knows_whether_truncates_are_applied():
    assert pipeline().traits.applies_truncates
    assert pipeline(value=WithKeyAndHeaders(APPLIES)).traits.applies_truncates
    assert not pipeline(value=Debezium("id int", version="postgres")).traits.applies_truncates


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sink": Append("public.t")}, "Append: only an Upsert applies truncates"),
        (
            {"sink": Aggregate("public.t", group_by=("id",), aggregates={"n": Count()})},
            "Aggregate: only an Upsert applies truncates",
        ),
        (
            {"sink": [Append("public.a"), SINK]},
            "Upsert('public.t')]: only an Upsert applies truncates",
        ),
        (
            {"sink": Upsert("public.t", key=("id",), version=("commit_lsn", "lsn"), history=False)},
            "truncate='apply' needs the history of the Upsert",
        ),
        ({"sink": Upsert("public.t", key=("id",))}, "in any partition, and it has no version"),
        (
            {"sink": Upsert("public.t", key=("id",), version="name")},
            "in any partition, and its version has 'name'",
        ),
        (
            {"value": Debezium("id int, commit_lsn bigint, lsn bigint", truncate="apply")},
            "its version has 'commit_lsn'",
        ),
        ({"transform": "select * from records"}, "a transform sees rows, and no truncates"),
        ({"topics": ("t", "u")}, "expected one topic, the topic of the table whose truncates are applied"),
        (
            {"topics": TopicPattern("t.*")},
            "expected one topic, the topic of the table whose truncates are applied",
        ),
    ],
)
def test_a_pipeline_that_cannot_apply_truncates_is_refused(options, said):
    with pytest.raises(ConfigurationError) as refused:
        pipeline(**options)
    assert said in str(refused.value)
    assert "truncate='apply'" in str(refused.value)


def test_an_unknown_choice_is_refused():
    with pytest.raises(ConfigurationError, match="expected truncate to be"):
        Debezium("id int", truncate="ignore")  # type: ignore[arg-type]
