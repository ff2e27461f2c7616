"""What `exactbatch new` proposes for values: types, names, formats; every sampled value is accepted."""

import io
import json
from datetime import date, datetime
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exactbatch import (
    Append,
    Csv,
    Debezium,
    Flattened,
    Json,
    JsonSchema,
    Raw,
    Text,
    Upsert,
    WithKeyAndHeaders,
)
from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.sampling.column_names import column_name, module_name
from exactbatch.sampling.csv_columns import draft_csv
from exactbatch.sampling.draft import decode, fit
from exactbatch.sampling.json_columns import MOST_COLUMNS
from exactbatch.sampling.key_and_sink import TopicFacts
from exactbatch.sampling.proposal import chosen_records, propose
from exactbatch.sampling.registry_columns import RegistryAddress
from exactbatch.testing import Record
from exactbatch.testing import decode as decode_given
from support.registry import registry_server


def proposed(*values, keys=None, is_compacted=False, partitions=None):
    """Propose a pipeline for values, JSON unless they are bytes or None."""
    written = [each if isinstance(each, bytes | None) else json.dumps(each).encode() for each in values]
    facts = TopicFacts(
        keys=pa.array(keys or [None] * len(values), pa.binary()),
        values=pa.array(written, pa.binary()),
        partitions=partitions or [0] * len(values),
        is_compacted=is_compacted,
    )
    return propose("p", "t", "public.p", facts)


def list_types(proposal):
    return {column.name: column.text.partition(" ")[2] for column in proposal.columns}


@pytest.mark.parametrize(
    ("name", "values", "type_"),
    [
        ("n", [1, -5], "bigint"),
        ("n", [2**63], "numeric"),
        ("wind_dir", [270, 270.0], "double precision"),
        ("n", [0.1, None], "double precision"),
        ("n", [Decimal("0.12345678901234567890")], "numeric"),
        ("totalPrice", [9.5], "numeric from 'totalPrice'"),
        ("flag", [True, None], "boolean"),
        ("flag", [True, 1], "jsonb"),
        ("x", [1, "a"], "jsonb"),
        ("x", [1, "2.5"], "numeric"),
        ("x", [None, None], "jsonb"),
        ("id", ["3f2504e0-4f89-11d3-9a0c-0305e82c3301"], "uuid"),
        ("day", ["2026-02-28"], "date"),
        ("day", ["2026-02-30"], "text"),  # no such day
        ("at", ["10:30", "23:59:59.123456"], "time"),
        ("at", ["2026-01-01T10:00:00Z", "2026-01-01 10:00+02:00"], "timestamptz"),
        ("at", ["2026-01-01T10:00:00"], "timestamp"),
        ("at", ["2026-01-01T10:00:00", "2026-01-01T10:00:00Z"], "timestamptz"),
        ("at", ["2026-01-01T10:00:00.1234567Z"], "text"),  # finer than Postgres
        ("at", ["2026-01-01T10:00:00.123456Z", "2026-01-01T10:00:00.123456789Z"], "text"),
        ("at", ["2026-01-01T10:00:00Z", "soon"], "text"),
        ("created_at", [1767225600], "timestamptz"),
        ("created_at", [1767225600000, 0], "timestamptz"),
        ("createdAt", [1767225600000000], "timestamptz from 'createdAt'"),
        ("created_at", [1767225600, 1767225600000], "bigint"),  # two units
        ("created_at", [3], "bigint"),
        ("quantity", [1767225600], "bigint"),  # nothing says that it is a time
        ("temperature", ["21.5", "20"], "numeric"),
        ("zip", ["21.5"], "text"),
        ("count", ["1", "2"], "text"),
        ("tags", [["a", None], []], "text[]"),
        ("tags", [[1, 2]], "bigint[]"),
        ("tags", [[1, 2.5]], "double precision[]"),
        ("tags", [[1, "a"]], "jsonb"),
        ("tags", [[[1]]], "jsonb"),
        ("tags", [[{"a": 1}]], "jsonb"),
        ("tags", [[]], "jsonb"),
        ("order", [1], "bigint from 'order'"),
        ("batch_id", [1], "bigint from 'batch_id'"),
    ],
)
def test_the_type_of_a_member(name, values, type_):
    # Decimals are written with their digits, which json.dumps() does not do.
    written = [
        json.dumps({name: str(value) if isinstance(value, Decimal) else value}).encode() for value in values
    ]
    written = [
        text.replace(f'"{value}"'.encode(), str(value).encode()) if isinstance(value, Decimal) else text
        for text, value in zip(written, values, strict=True)
    ]
    proposal = proposed(*written)
    assert list(list_types(proposal).values()) == [type_]
    assert proposal.broken == ()
    assert len(proposal.decoded.rows) == len(values)


def test_times_finer_than_postgres_are_text_at_once():
    [column] = proposed({"at": "2026-01-01T10:00:00.1234567Z"}, {"at": "2026-01-01T10:00:00Z"}).columns
    assert (column.type, column.reasons) == (
        "text",
        "some times have more than six digits of a second's fraction",
    )


@pytest.mark.parametrize(
    ("moment", "unit"),
    [(1767225600, "s"), (1767225600000, "ms"), (1767225600000000, "us"), (1767225600000000000, "ns")],
)
def test_the_unit_of_a_time_follows_from_its_size(moment, unit):
    proposal = proposed({"ts": moment})
    assert proposal.pipeline.value.epoch == {"ts": unit}
    (row,) = proposal.decoded.rows.to_pylist()
    assert row["ts"] == datetime.fromisoformat("2026-01-01T00:00:00+00:00")


def test_members_of_nested_objects_become_columns_with_paths():
    event = {"user": {"id": 1, "address": {"city": "Köln"}}, "items": [{"sku": "a"}], "a.b": {"c d": 1}}
    assert list_types(proposed(event)) == {
        "user_id": "bigint from 'user.id'",
        "user_address_city": "text from 'user.address.city'",
        "items": "jsonb",
        "a_b_c_d": "bigint from '\"a.b\".c d'",
    }


def test_a_nested_object_that_is_sometimes_null_or_empty_is_still_one():
    proposal = proposed({"user": {"id": 1}}, {"user": None}, {"user": {}}, {})
    assert list_types(proposal) == {"user_id": "bigint from 'user.id'"}
    assert [column.nulls for column in proposal.columns] == [3]


def test_an_object_with_keys_that_are_data_is_one_column():
    by_day = {"sales": {f"2026-01-{day:02}": day for day in range(1, 20)}}
    assert list_types(proposed(by_day)) == {"sales": "jsonb"}
    rare = [{"labels": {f"label_{number}": "x"}} for number in range(50)]
    assert list_types(proposed(*rare)) == {"labels": "jsonb"}


def test_names_that_collide_get_numbers():
    proposal = proposed({"userId": 1, "user_id": 2, "user": {"id": 3}})
    assert list_types(proposal) == {
        "user_id": "bigint from 'userId'",
        "user_id_2": "bigint from 'user_id'",
        "user_id_3": "bigint from 'user.id'",
    }
    assert list(proposal.decoded.rows.to_pylist()[0].values()) == [1, 2, 3]


def test_more_members_than_a_table_has_columns():
    proposal = proposed({f"m{number}": number for number in range(MOST_COLUMNS + 7)})
    assert len(proposal.columns) == MOST_COLUMNS
    assert "the rarest 7" in " ".join(proposal.notes)
    nested = {
        "a": {f"m{number}": {"x": number} for number in range(15)},
        "b": {f"n{n}": n for n in range(90)},
    }
    assert list_types(proposed(nested)) == {"a": "jsonb", "b": "jsonb"}


def test_a_record_that_no_schema_accepts_is_named_and_spoils_no_type():
    good = [{"id": number, "name": "x"} for number in range(20)]
    proposal = proposed(*good, b'{"id": 1, "name": "\\u0000"}', b"oops")
    assert list_types(proposal) == {"id": "bigint", "name": "text"}
    assert [index for index, _ in proposal.broken] == [20, 21]
    assert len(proposal.decoded.rows) == 20


@pytest.mark.parametrize(
    ("value", "format_"),
    [
        (b"2026-01-01 10:00:00,123 INFO started", Text),
        (b"2026-01-01 10:00:00,123 INFO served /a, in 5 ms", Text),
        (b"\xff\xfe\x00", Raw),
        (b"a\0b", Raw),
        (b"42", Text),
        (b'"quoted"', Text),
        (b"1;2;3", Csv),
        (b'{"a": 1}', Json),
        (b"", Text),
    ],
)
def test_the_format_of_a_value(value, format_):
    assert type(proposed(value, value).pipeline.value) is format_


def test_several_documents_and_compressed_values():
    import gzip

    assert proposed(b'[{"a": 1}, {"a": 2}]').pipeline.value.documents == "array"
    assert proposed(b'{"a": 1}\n{"a": 2}').pipeline.value.documents == "lines"
    zipped = proposed(gzip.compress(b'{"a": 1}'))
    assert zipped.pipeline.value.encoding == "gzip"
    assert zipped.decoded.rows.to_pylist() == [{"a": 1}]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
@pytest.mark.parametrize("document", ['{"a":1}', '{"a": "x", "b": 1, "c": 2}'])
def test_json_that_is_not_plain_utf_8_is_not_proposed_as_json(encoding, document):
    value = document.encode(encoding)
    proposal = proposed(value, value)
    assert type(proposal.pipeline.value) is (Text if encoding == "utf-8-sig" else Raw)
    assert proposal.broken == ()


def test_a_format_that_nine_of_ten_values_have_is_proposed():
    import base64
    import gzip

    def proposed_with_one(broken, values):
        proposal = proposed(*values, broken)
        assert [index for index, _ in proposal.broken] == [9]
        assert len(proposal.decoded.rows) == 9
        return proposal

    zipped = gzip.compress(b'{"a": 1}')
    assert proposed_with_one(b"x", [b'{"a": 1}'] * 9).pipeline.value == Json("a bigint")
    for broken in (b'{"a": "x"}', b"\x1f\x8b", b"\xff"):
        assert proposed_with_one(broken, [zipped] * 9).pipeline.value == Json("a bigint", encoding="gzip")
        of_base64 = proposed_with_one(broken, [base64.b64encode(zipped)] * 9).pipeline.value
        assert of_base64 == Json("a bigint", encoding=("base64", "gzip"))
    for broken in (b"1,2,\xff", b"1,2,\0", b"1"):
        assert list_types(proposed_with_one(broken, [b"1,2,3"] * 9)) == {
            "column_1": "bigint",
            "column_2": "bigint",
            "column_3": "bigint",
        }
    assert proposed_with_one(b"\xff", [b"a line"] * 9).pipeline.value == Text("line")
    assert proposed(*[b"a line"] * 8, b"\xff").pipeline.value == Raw("bytes")


def test_the_payload_next_to_a_schema_of_connect():
    value = {"schema": {"type": "struct", "fields": []}, "payload": {"id": 1}}
    assert list_types(proposed(value)) == {"id": "bigint from 'payload.id'"}


@pytest.mark.parametrize(
    "number",
    ["9" * 5000, "-" + "9" * 5000, "0." + "9" * 5000, "1e-99999999999999999999", "1e99999999999999999999"],
)
def test_a_number_of_any_length_is_no_error(number):
    good = [b'{"a": 1}'] * 20
    assert len(proposed(*good, b'{"a": %s}' % number.encode()).decoded.rows) >= 20
    lines = [b"1,2,3"] * 20
    assert len(proposed(*lines, b"1,2,%s" % number.encode()).decoded.rows) >= 20
    events = [change("c", None, {"day": 20000})] * 20
    long = json.dumps(change("c", None, {"day": "?"})).replace('"?"', number).encode()
    assert len(proposed(*events, long).decoded.rows) >= 20


def test_integers_in_csv_are_bigint_as_far_as_it_holds_them():
    proposal = proposed(b"9223372036854775807,9223372036854775808,1", b"-9223372036854775808,1,1")
    assert list(list_types(proposal).values()) == ["bigint", "numeric", "bigint"]


def test_numbers_in_csv_keep_their_digits():
    proposal = proposed(b"1e-400,0.1,0.12345678901234567890", b"2.5,1e3,1.5")
    assert list(list_types(proposal).values()) == ["numeric", "double precision", "numeric"]
    assert Decimal(str(proposal.decoded.rows.to_pylist()[0]["column_1"])) == Decimal("1e-400")


def test_the_header_among_lines_of_csv_names_the_columns():
    proposal = proposed(b"id,name,day", *[b"%d,x,2026-01-01" % number for number in range(5)])
    assert list_types(proposal) == {"id": "text", "name": "text", "day": "text"}
    assert proposal.decoded.rows.num_rows == 6


def test_the_text_that_stands_for_null_in_csv():
    proposal = proposed(b"1,NA,a", b"NA,2.5,b", b"3,4,NA")
    assert list_types(proposal) == {"column_1": "bigint", "column_2": "double precision", "column_3": "text"}
    assert proposal.decoded.rows.to_pylist()[1] == {"column_1": None, "column_2": 2.5, "column_3": "b"}


KEYED = [{"id": 7, "name": "x"}, {"id": 8, "name": "y"}]


def test_a_topic_that_is_not_compacted_is_appended():
    assert proposed(*KEYED, keys=[b"7", b"8"]).pipeline.sink == Append("public.p")
    with_tombstone = proposed(*KEYED, None, keys=[b"7", b"8", b"8"])
    assert with_tombstone.pipeline.sink == Append("public.p")
    assert "delete nothing" in " ".join(with_tombstone.notes)


@pytest.mark.parametrize(
    ("keys", "key", "column"),
    [
        ([b"7", b"8", b"8"], Text("id bigint"), "id"),
        ([b'{"id": 7}', b'{"id": 8}', b'{"id": 8}'], Json("id bigint"), "id"),
        ([b"x", b"y", b"y"], Text("name"), "name"),
        ([b"u-1", b"u-2", b"u-2"], Text("key"), "key"),
        ([b"\0\xff", b"\0\xfe", b"\0\xfe"], Raw("key"), "key"),
        ([b'{"tenant": "a"}', b'{"tenant": "b"}', b'{"tenant": "b"}'], Json("tenant text"), "tenant"),
    ],
)
def test_a_compacted_topic_is_an_upsert_by_its_key(keys, key, column):
    proposal = proposed(*KEYED, None, keys=keys, is_compacted=True)
    assert proposal.pipeline.sink == Upsert("public.p", key=(column,))
    assert proposal.pipeline.message_key == key
    assert isinstance(proposal.pipeline.value, WithKeyAndHeaders) == (column in ("key", "tenant"))
    rows = proposal.decoded.rows.to_pylist()
    assert [row["deleted"] for row in rows] == [False, False, True]
    assert rows[1][column] == rows[2][column] is not None


@pytest.mark.parametrize(
    ("ids_of_keys", "has_tombstone"),
    [([1, 2], False), ([1, 2], True), (["K1", "K2"], False), ([7, 9], False)],
)
def test_members_of_keys_and_values_with_the_same_name_and_other_values_are_not_the_key(
    ids_of_keys, has_tombstone
):
    keys = [json.dumps({"id": id_}).encode() for id_ in ids_of_keys]
    values = [{"id": 7, "qty": 1}, {"id": 7, "qty": 2}]
    if has_tombstone:
        values, keys = [*values, None], [*keys, keys[-1]]
    proposal = proposed(*values, keys=keys, is_compacted=True)
    assert proposal.pipeline.sink == Upsert("public.p", key=("key",))
    assert proposal.pipeline.message_key == Text("key")
    assert len({row["key"] for row in proposal.decoded.rows.to_pylist()}) == 2


@pytest.mark.parametrize("key", [b"k-1", b'{"tenant": "a"}', b'{"id": 7}'])
@pytest.mark.parametrize("documents", [b'[{"id": 7}, {"id": 8}]', b'{"id": 7}\n{"id": 7}'])
def test_a_compacted_topic_with_several_rows_of_one_key_in_a_record_is_appended(key, documents):
    """No batch of an Upsert commits such a record: nothing says which row is the later one."""
    proposal = proposed(documents, documents, None, keys=[key, b"k-2", b"k-2"], is_compacted=True)
    assert proposal.pipeline.sink == Append("public.p")
    assert "a sampled record gives several rows of one key" in " ".join(proposal.notes)
    assert (len(proposal.decoded.rows), proposal.broken) == (4, ())


def test_a_compacted_topic_with_one_document_in_each_array_is_an_upsert():
    proposal = proposed(b'[{"id": 7}]', b'[{"id": 8}]', keys=[b"7", b"8"], is_compacted=True)
    assert proposal.pipeline.sink == Upsert("public.p", key=("id",))


@pytest.mark.parametrize("has_tombstone", [False, True])
@pytest.mark.parametrize("values_have_schemas", [False, True])
@pytest.mark.parametrize("member", ["id", "tenant"])
def test_keys_next_to_their_schemas_are_an_upsert_by_the_payload(member, values_have_schemas, has_tombstone):
    def next_to_schema(payload):
        return {"schema": {"type": "struct", "fields": []}, "payload": payload}

    keys = [json.dumps(next_to_schema({member: each["id"]})).encode() for each in KEYED]
    values = [next_to_schema(each) for each in KEYED] if values_have_schemas else KEYED
    if has_tombstone:
        values, keys = [*values, None], [*keys, keys[-1]]
    proposal = proposed(*values, keys=keys, is_compacted=True)
    assert proposal.pipeline.sink == Upsert("public.p", key=(member,))
    assert proposal.pipeline.message_key == Json(f"{member} bigint from 'payload.{member}'")
    assert isinstance(proposal.pipeline.value, WithKeyAndHeaders) == (member == "tenant")
    assert [row[member] for row in proposal.decoded.rows.to_pylist()] == [7, 8, 8][: len(values)]


@pytest.mark.parametrize(
    ("value", "key", "column", "format_"),
    [
        ({"userId": 7}, {"userId": 7}, "user_id", Json("user_id bigint from 'userId'")),
        ({"order": {"id": 7}}, {"order": {"id": 7}}, "order_id", Json("order_id bigint from 'order.id'")),
        ({"user_id": 1, "userId": 7}, {"userId": 7}, "user_id_2", Json("user_id_2 bigint from 'userId'")),
        ({"id": 7, "payload": {"id": 9}}, {"id": 7}, "id", Json("id bigint")),
    ],
)
def test_a_key_column_is_that_of_the_value_with_the_path_in_the_key(value, key, column, format_):
    proposal = proposed(value, keys=[json.dumps(key).encode()], is_compacted=True)
    assert proposal.pipeline.sink == Upsert("public.p", key=(column,))
    assert proposal.pipeline.message_key == format_


@pytest.mark.parametrize(
    ("keys", "partitions", "why"),
    [([b"7", None], [0, 0], "no key"), ([b"7", b"7"], [0, 1], "partitions 0 and 1")],
)
def test_a_compacted_topic_without_usable_keys_is_appended(keys, partitions, why):
    proposal = proposed(*KEYED, keys=keys, is_compacted=True, partitions=partitions)
    assert proposal.pipeline.sink == Append("public.p")
    assert why in " ".join(proposal.notes)


def test_tombstones_alone_say_nothing():
    with pytest.raises(ConfigurationError, match="all 2 sampled records of 't' are tombstones"):
        proposed(None, None)


def change(op, before, after, **source):
    source = {"connector": "postgresql", "lsn": 5, "sequence": '["4","5"]', "table": "t", **source}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1}


def test_debezium_without_schemas():
    row = {"id": 1, "createdAt": 1767225600000000, "born_on_date": 20000, "price": "12.50", "order": None}
    proposal = proposed(change("c", None, row), change("d", row, None), None, keys=[b'{"id": 1}'] * 3)
    assert list_types(proposal) == {
        "id": "bigint",
        '"createdAt"'.strip('"'): "timestamp",
        "born_on_date": "date",
        "price": "numeric",
        "order": "jsonb",
    }
    assert proposal.pipeline.traits.identity == Upsert("public.p", key=("id",)).identity
    first, last = proposal.decoded.rows.to_pylist()
    assert (first["deleted"], last["deleted"]) == (False, True)
    assert first["born_on_date"] == date(2024, 10, 4)
    assert first["createdAt"] == datetime(2026, 1, 1)


def test_fields_of_debezium_with_names_that_a_table_uses_get_others():
    row = {"batch_id": 1, "deleted": True, "ctid": "a", "x" * 64: "b", 'q"': 1}
    events = [change("c", None, row), change("d", {"batch_id": 1}, None)]
    proposal = proposed(*events, keys=[b'{"batch_id": 1}'] * 2)
    assert list_types(proposal) == {
        "batch_id_": "bigint from 'batch_id'",
        "deleted_": "boolean from 'deleted'",
        "ctid_": "text from 'ctid'",
        "x" * 63: f"text from '{'x' * 64}'",
    }
    assert [note for note in proposal.notes if "left out" in note] == [
        "left out, because a table cannot have such columns: 'q\"'"
    ]
    assert proposal.pipeline.traits.identity == Upsert("public.p", key=("batch_id_",)).identity
    first, _ = proposal.decoded.rows.to_pylist()
    assert (first["batch_id_"], first["deleted_"], first["ctid_"]) == (1, True, "a")


def test_numbers_of_debezium_without_schemas_are_never_numeric():
    events = [change("c", None, {"price": 12.5, "total": 7}), change("c", None, {"price": 3, "total": 8})]
    proposal = proposed(*events)
    assert list_types(proposal) == {"price": "double precision", "total": "bigint"}
    assert len(proposal.decoded.rows) == 2


def test_objects_of_debezium_without_schemas_are_left_out():
    rows = [
        {"id": 1, "at": {"x": 1}, "mixed": "a", "tags": ["a"]},
        {"id": 2, "at": None, "mixed": 5, "tags": []},
    ]
    proposal = proposed(*(change("c", None, row) for row in rows), keys=[b'{"id": 1}', b'{"id": 2}'])
    assert list_types(proposal) == {"id": "bigint", "tags": "text[]"}
    assert len(proposal.decoded.rows) == 2
    assert any("only with a schema: 'at', 'mixed'" in note for note in proposal.notes)


def test_the_day_of_a_month_or_year_is_no_date():
    days = [1, 28, 366]
    events = [change("c", None, {"id": day, "day": day, "birthday": 300 + day}) for day in days]
    proposal = proposed(*events, keys=[b'{"id": %d}' % day for day in days])
    assert list_types(proposal) == {"id": "bigint", "day": "bigint", "birthday": "date"}


def test_what_the_source_left_out_and_seconds_say_nothing_of_a_type():
    id_ = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"
    first = change("c", None, {"id": 1, "ref": id_, "created_at": 1767225600})
    second = change("u", None, {"id": 1, "ref": "__debezium_unavailable_value", "created_at": 1767225601})
    proposal = proposed(first, second, keys=[b'{"id": 1}'] * 2)
    # No mode of a connector writes seconds.
    assert list_types(proposal) == {"id": "bigint", "ref": "uuid", "created_at": "bigint"}
    assert len(proposal.decoded.rows) == 2


def test_no_record_that_lacks_what_has_not_changed_is_in_the_test():
    whole = [change("c", None, {"id": number, "body": None}) for number in range(3)]
    update = change("u", None, {"id": 1, "body": "__debezium_unavailable_value"})
    values = [json.dumps(each).encode() for each in (*whole, update)]
    keys = [b'{"id": 0}', b'{"id": 1}', b'{"id": 2}', b'{"id": 1}']
    for keys_or_none in (keys, None):  # an Upsert, and an Append
        proposal = proposed(*values, keys=keys_or_none)
        chosen = chosen_records(
            proposal.decoded, pa.array(values, pa.binary()), count=3, with_tombstone=bool(keys_or_none)
        )
        assert chosen == [0, 1, 2]
        loaded = decode_given(proposal.pipeline, [Record(values[index], keys[index]) for index in chosen])
        assert (loaded.rejects, len(loaded.rows)) == ([], 3)


def test_debezium_of_a_table_without_a_key_is_appended():
    proposal = proposed(change("c", None, {"id": 1}))
    assert proposal.pipeline.sink == Append("public.p")
    assert "primary key" in " ".join(proposal.notes)


def test_debezium_has_no_version_so_that_a_truncate_is_a_reject():
    truncate = change("t", None, None)
    proposal = proposed(change("c", None, {"id": 1, "lsn": 2}), truncate, keys=[b'{"id": 1}', None])
    assert isinstance(proposal.pipeline.value, Debezium)
    assert (proposal.pipeline.value.version, proposal.pipeline.value.truncate) == (None, "reject")
    assert proposal.pipeline.traits.identity == Upsert("public.p", key=("id",)).identity
    [(index, reason)] = proposal.broken
    assert (index, "was truncated at its source" in reason) == (1, True)
    assert list_types(proposal)["lsn"] == "bigint"


ROWS = [{"id": 1, "name": "a", "__op": "c"}, {"id": 2, "name": "__debezium_unavailable_value", "__op": "u"}]


@pytest.mark.parametrize("wrapped", [False, True])
def test_flattened_events_are_recognized(wrapped):
    names = {"id": "int32", "name": "string", "__op": "string", "__deleted": "string"}
    fields = [{"type": type_, "optional": True, "field": name} for name, type_ in names.items()]
    schema = {"type": "struct", "fields": fields, "name": "shop.public.t.Value"}
    rows = [*({**row, "__deleted": "false"} for row in ROWS), {"id": 1, "__op": "d", "__deleted": "true"}]
    values = [{"schema": schema, "payload": row} if wrapped else row for row in [*rows, *rows]]
    key_schema = {"type": "struct", "fields": fields[:1], "name": "shop.public.t.Key"}
    keys = [
        {"schema": key_schema, "payload": {"id": row["id"]}} if wrapped else {"id": row["id"]} for row in rows
    ]
    written = [*(json.dumps(each).encode() for each in values), None, b"null"]
    proposal = proposed(*written, keys=[json.dumps(key).encode() for key in [*keys, *keys, keys[1], keys[1]]])
    pipeline = proposal.pipeline
    assert (type(pipeline.value), pipeline.message_key) == (
        Flattened,
        Flattened("id integer" if wrapped else "id bigint"),
    )
    assert list_types(proposal) == {"id": "integer" if wrapped else "bigint", "name": "text", "__op": "text"}
    assert pipeline.traits.identity == Upsert("public.p", key=("id",)).identity
    assert proposal.broken == ()
    assert len(proposal.decoded.rows) == len(written)


def test_flattened_events_with_plain_keys_or_none():
    rows = [{**row, "__deleted": "false"} for row in ROWS]
    written = [json.dumps(row).encode() for row in rows]
    for keys, key in (
        ([b"1", b"2"], Text("id bigint")),
        ([b"\0\0\0\0\0\0\0\1", b"\0\0\0\0\0\0\0\2"], Raw("id bigint")),
    ):
        pipeline = proposed(*written, keys=keys).pipeline
        assert (pipeline.message_key, pipeline.traits.key_columns) == (key, ("id",))
    assert isinstance(proposed(*written).pipeline.sink, Append)


def test_documents_of_mongodb():
    document = json.dumps({"_id": {"$oid": "5" * 24}, "n": 1, "at": {"$date": 1767225600000}, "x": {"a": 1}})
    event = change("c", None, document, connector="mongodb")
    proposal = proposed(event, keys=[b'{"id": "x"}'])
    assert list_types(proposal) == {"_id": "text", "n": "bigint", "at": "timestamptz", "x": "jsonb"}
    assert proposal.pipeline.traits.identity == Upsert("public.p", key=("_id",)).identity


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["2026-01-01", "2026-13-01", "10:00", "25:00", "1.50", "007", "1767225600", "", " 1"]),
    st.datetimes().map(lambda moment: moment.isoformat()),
    st.uuids().map(str),
    st.sampled_from([1767225600, 1767225600000, 0, -1, 2**63 - 1, 2**63]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
members = st.sampled_from(
    [
        "id",
        "createdAt",
        "ts",
        "price",
        "select",
        "user.id",
        "",
        "é",
        "a b",
        "$",
        '"',
        "\\",
        "kafka_offset",
        "x" * 70,
    ]
)


@settings(max_examples=150)
@given(st.lists(st.dictionaries(members, values, max_size=5), min_size=1, max_size=6))
def test_a_proposal_accepts_every_sampled_object(objects):
    written = [json.dumps(each).encode() for each in objects]
    proposal = proposed(*written)
    for index, reason in proposal.broken:
        assert b"\\u0000" in written[index] or b"\\ud" in written[index], reason
    assert len(proposal.decoded.rows) == len(objects) - len(proposal.broken)
    for column in proposal.pipeline.value.columns:
        assert Column(column.name, column.type) == column


CELLS = (
    *(
        "NA",
        "1",
        "-2",
        "007",
        "1.5",
        "1e3",
        "true",
        "2026-01-01",
        "2026-02-31",
        "x",
        '"a;b"',
        '""',
        "0x10",
        "NaN",
    ),
    *("2026-01-01T10:00:00Z", "2026-01-01T10:00", "9" * 20),
)


@settings(max_examples=100)
@given(
    st.integers(3, 6).flatmap(
        lambda width: st.lists(
            st.lists(st.sampled_from(["", " 1", *CELLS]), min_size=width, max_size=width),
            min_size=1,
            max_size=6,
        )
    )
)
def test_a_proposal_accepts_every_sampled_line_of_csv(lines):
    texts = [";".join(line) for line in lines]
    draft = draft_csv(texts)
    if draft is None:
        return
    values = pa.array([text.encode() for text in texts], pa.binary())
    fitted = fit(draft, values)
    assert fitted.broken == ()
    assert decode(fitted.format, values).rejects == ()


@given(st.lists(st.text(max_size=80), max_size=8))
def test_names_of_columns_are_different_and_storable(names):
    taken = []
    for name in names:
        taken.append(column_name(name, taken))
    assert len(set(taken)) == len(names)
    for name in taken:
        Column(name, "text")


@pytest.mark.parametrize(
    ("given_name", "name"),
    [
        ("orders", "orders"),
        ("my-orders", "my_orders"),
        ("shop.public.Orders", "shop_public_orders"),
        ("webEvents", "web_events"),
        ("2024_orders", "pipeline_2024_orders"),
        ("class", "class_"),
        ("dag", "dag_"),
        ("load", "load_"),
        ("loaded", "loaded_"),
        ("float", "float_"),
        ("date", "date_"),
        ("datetime", "datetime_"),
        ("time", "time_"),
        ("timedelta", "timedelta_"),
    ],
)
def test_the_name_of_a_pipeline_is_one_of_a_module(given_name, name):
    assert module_name(given_name) == name
    assert name.isidentifier()


@pytest.mark.parametrize("name", ["", "--", "größe", "x" * 60])
def test_a_name_that_no_module_or_table_can_have_is_refused(name):
    with pytest.raises(ConfigurationError, match=r"name"):
        module_name(name)


@pytest.fixture
def registry():
    with registry_server() as found:
        yield found


def proposed_by(registry, *values, keys=None):
    facts = TopicFacts(
        keys=pa.array(keys or [None] * len(values), pa.binary()),
        values=pa.array(values, pa.binary()),
        partitions=[0] * len(values),
        is_compacted=False,
        registry=RegistryAddress(registry.address, {}),
    )
    return propose("p", "t", "public.p", facts)


def framed(schema_id, schema, value):
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
    return b"\0" + schema_id.to_bytes(4, "big") + body.getvalue()


def test_json_after_the_id_of_its_schema(registry):
    registry.has(3, {"type": "object"}, schemaType="JSON")
    proposal = proposed_by(registry, b'\0\0\0\0\3{"userId": 1}', None)
    assert proposal.pipeline.value == JsonSchema("user_id bigint from 'userId'", registry=registry.address)
    assert len(proposal.decoded.rows) == 1


def test_avro_that_changed_from_int_to_long_and_got_a_field(registry):
    first = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "int"}]}
    more = {"name": "note", "type": ["null", "string"], "default": None}
    second = {**first, "fields": [{"name": "id", "type": "long"}, more]}
    registry.has(1, first)
    registry.has(2, second)
    values = framed(1, first, {"id": 1}), framed(2, second, {"id": 2**40, "note": "x"})
    assert list_types(proposed_by(registry, *values)) == {"id": "bigint", "note": "text"}


def test_times_that_debezium_unwrapped_into_avro(registry):
    def time(name, type_="long"):
        return {"type": type_, "connect.name": f"io.debezium.time.{name}"}

    fields = {
        "id": "int",
        "at": ["null", time("MicroTimestamp")],
        "zoned": time("ZonedTimestamp", "string"),
        "day": time("Date", "int"),
        "opens": time("MicroTime"),
        "takes": time("MicroTime"),
        "beyond": time("Timestamp"),
    }
    written = [{"name": name, "type": type_} for name, type_ in fields.items()]
    schema = {"type": "record", "name": "r", "fields": written}
    registry.has(1, schema)
    hour = 3_600_000_000
    record = {
        "id": 1,
        "at": 1_767_225_600_000_001,
        "zoned": "2026-01-01T00:00:00Z",
        "day": 20_454,
        "opens": 10 * hour,
        "takes": 30 * hour,  # MySQL's times go beyond a day
        "beyond": 2**62,
    }
    proposal = proposed_by(registry, framed(1, schema, record))
    assert list_types(proposal) == {
        "id": "integer",
        "at": "timestamp",
        "zoned": "timestamptz",
        "day": "date",
        "opens": "time",
        "takes": "interval",
        "beyond": "bigint",  # later than any timestamp
    }
    assert proposal.decoded.rows.to_pylist()[0]["at"] == datetime(2026, 1, 1, microsecond=1)


def test_no_record_with_nan_is_in_the_test(registry):
    fields = [
        {"name": "id", "type": ["null", "int"]},
        {"name": "x", "type": "double"},
        {"name": "xs", "type": {"type": "array", "items": "double"}},
    ]
    schema = {"type": "record", "name": "r", "fields": fields}
    registry.has(1, schema)
    nan, inf = float("nan"), float("inf")
    found = [(1, nan, []), (2, 0.5, [nan]), (None, inf, [-inf])]
    values = [framed(1, schema, {"id": id_, "x": x, "xs": xs}) for id_, x, xs in found]
    proposal = proposed_by(registry, *values)
    chosen = chosen_records(proposal.decoded, pa.array(values, pa.binary()), count=3, with_tombstone=False)
    assert chosen == [2]


@pytest.mark.parametrize("broken", [b'{"x": 1}', b"\0", b"\0\0\0\0\x01", b"\0\0\0\0\x63\x02", b"\0{}"])
def test_one_record_in_ten_may_be_no_avro(registry, broken):
    registry.has(1, {"type": "record", "name": "r", "fields": [{"name": "id", "type": "int"}]})
    proposal = proposed_by(registry, *[b"\0\0\0\0\1\2"] * 9, broken)
    assert list_types(proposal) == {"id": "integer"}
    assert [index for index, _ in proposal.broken] == [9]


def field_of(type_):
    return {
        "type": "record",
        "name": "r",
        "fields": [{"name": "id", "type": "int"}, {"name": "x", "type": type_}],
    }


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}


@pytest.mark.parametrize(
    ("logical", "good", "bad", "column"),
    [
        ({"type": "long", "logicalType": "timestamp-millis"}, 0, 2**63 - 1, "timestamptz"),
        ({"type": "int", "logicalType": "time-millis"}, 0, -1, "time"),
        (DECIMAL, b"\7", b"\x7f" * 9, "numeric(10,2)"),
    ],
)
def test_one_value_that_no_type_accepts_breaks_its_record_alone(registry, logical, good, bad, column):
    plain, written = field_of(logical["type"]), field_of(logical)
    registry.has(1, written)
    values = [framed(1, plain, {"id": 1, "x": bad if number == 7 else good}) for number in range(20)]
    proposal = proposed_by(registry, *values)
    assert list_types(proposal) == {"id": "integer", "x": column}
    assert [index for index, _ in proposal.broken] == [7]


@pytest.mark.parametrize("is_array", [False, True])
def test_decimals_of_two_scales_are_a_numeric_that_holds_all(registry, is_array):
    values = []
    for schema_id, scale, written in ((1, 2, "12345678.90"), (2, 4, "0.1234")):
        type_ = {**DECIMAL, "scale": scale}
        schema = field_of({"type": "array", "items": type_} if is_array else type_)
        registry.has(schema_id, schema)
        number = Decimal(written)
        values.append(framed(schema_id, schema, {"id": 1, "x": [number] if is_array else number}))
    proposal = proposed_by(registry, *values)
    column = "numeric[]" if is_array else "numeric"
    assert (list_types(proposal), proposal.broken) == ({"id": "integer", "x": column}, ())


def test_one_record_in_ten_may_have_a_schema_that_is_none(registry):
    registry.has(1, {"type": "record", "name": "r", "fields": [{"name": "id", "type": "int"}]})
    registry.has(2, {})
    proposal = proposed_by(registry, *[b"\0\0\0\0\1\2"] * 9, b"\0\0\0\0\2\2")
    assert list_types(proposal) == {"id": "integer"}
    assert [index for index, _ in proposal.broken] == [9]
    with pytest.raises(ConfigurationError, match="no valid Avro schema for the IDs 2"):
        proposed_by(registry, b"\0\0\0\0\2\2")


ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {
            "name": "before",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Value",
                    "fields": [{"name": "id", "type": "int"}, {"name": "n", "type": "long"}],
                },
            ],
        },
        {"name": "after", "type": ["null", "Value"]},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [
                    {"name": "connector", "type": "string"},
                    {"name": "lsn", "type": ["null", "long"]},
                    {"name": "sequence", "type": ["null", "string"]},
                ],
            },
        },
        {"name": "op", "type": "string"},
    ],
}
EVENT = {
    "before": None,
    "after": {"id": 7, "n": 1},
    "source": {"connector": "postgresql", "lsn": 9, "sequence": '["8","9"]'},
    "op": "c",
}


def test_debezium_as_avro_with_keys_as_avro(registry):
    key = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}
    registry.has(5, ENVELOPE)
    registry.has(6, key)
    proposal = proposed_by(registry, framed(5, ENVELOPE, EVENT), keys=[framed(6, key, {"id": 7})])
    assert list_types(proposal) == {"id": "integer", "n": "bigint"}
    assert proposal.pipeline.traits.identity == Upsert("public.p", key=("id",)).identity
    assert proposal.decoded.rows.to_pylist()[0]["id"] == 7


@pytest.mark.parametrize("broken", [framed(5, ENVELOPE, EVENT)[:-2], b'{"x": 1}'], ids=["cut", "json"])
def test_one_record_in_ten_may_be_no_event_in_avro(registry, broken):
    registry.has(5, ENVELOPE)
    proposal = proposed_by(registry, *[framed(5, ENVELOPE, EVENT)] * 9, broken)
    assert list_types(proposal) == {"id": "integer", "n": "bigint"}
    assert [index for index, _ in proposal.broken] == [9]


def test_a_type_of_schema_that_is_not_recognized_is_refused(registry):
    registry.has(4, {}, schemaType="PROTOBUF")
    with pytest.raises(ConfigurationError, match="types PROTOBUF for the IDs 4"):
        proposed_by(registry, b"\0\0\0\0\4\0abc")
