"""Columns take members of JSON objects by paths, elements of arrays as rows, and defaults for what is missing."""

import json
import pickle
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exactbatch.audit.json_members import find_audited_decoder
from exactbatch.batch.rows.decode import is_row_each, with_rows
from exactbatch.columns import parse_fields
from exactbatch.errors import ConfigurationError
from exactbatch.formats import Avro, Csv, Json, Text, WithKeyAndHeaders
from exactbatch.formats.decoders import find_decoder
from exactbatch.formats.upsert_changes import as_changes
from support.decoding import decode, reason, rows


def refusal(schema: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        Json(schema)
    return str(refused.value)


def test_a_column_takes_the_member_that_its_path_leads_to():
    value = Json(
        "user_id bigint from 'user.id', name text from 'userName', first_item text from 'items[0].sku', "
        "third int from 'points[2]', at timestamptz from 'user.at', raw jsonb from '$', "
        'own json from \'"a.b"."c[0]"\', "Plain" text',
        epoch={"at": "ms"},
    )
    written = (
        b'{"user": {"id": 7, "at": 1709200800123}, "userName": "Ada", "items": [{"sku": "A1"}, {"sku": "A2"}], '
        b'"points": [1, 2, 3], "a.b": {"c[0]": {"n":  1.10}}, "Plain": "p"}'
    )
    assert rows(value, written) == [
        {
            "user_id": 7,
            "name": "Ada",
            "first_item": "A1",
            "third": 3,
            "at": datetime(2024, 2, 29, 10, 0, 0, 123000, UTC),
            "raw": written.decode(),
            "own": '{"n":  1.10}',
            "Plain": "p",
        }
    ]


@pytest.mark.parametrize(
    "written",
    [
        b"{}",
        b'{"a": null}',
        b'{"a": {}}',
        b'{"a": {"b": null}}',
        b'{"a": {"b": [null]}}',
        b'{"a": {"b": []}}',
    ],
)
def test_a_missing_parent_or_element_is_null(written):
    value = Json("typed int from 'a.b[0].c', kept jsonb from 'a.b[0].d', later text from 'a.b[3].e'")
    assert rows(value, written) == [{"typed": None, "kept": None, "later": None}]


@pytest.mark.parametrize(
    ("schema", "written", "why"),
    [
        ("x int from 'a.b'", b'{"a": 5}', "a: expected object, found number"),
        ("x int from 'a.b'", b'{"a": [1]}', "a: expected object, found array"),
        ("x int from 'a.b'", b'{"a": {"b": "1"}}', "a/b: expected number, found string"),
        ("x int from 'a.b'", b'{"a": {"b": 1, "b": 2}}', "Column(/a/b) was specified twice"),
        ("x int from 'a.b'", b'{"a": {"b": 1}, "a": {"b": 2}}', "Column(/a) was specified twice"),
        ("x int from 'a[1]'", b'{"a": {"b": 1}}', "a: expected array, found object"),
        ("x jsonb from 'a.b'", b'{"a": 5}', "a: expected object | null, found int"),
        ("x jsonb from 'a.b'", b'{"a": {"b": 1, "b": 2}}', "field 'b' was specified twice"),
        ("x jsonb from 'a.b'", b'{"a": {"b": 1}, "\\u0061": {"b": 2}}', "field 'a' was specified twice"),
        ("x jsonb from 'a[].b'", b'{"a": [{"b": 1}, {"b": 1, "b": 2}]}', "field 'b' was specified twice"),
        ("x numeric from 'a.b'", b'{"a": {"b": "y"}}', "expected a number, bare or in a string"),
    ],
)
def test_a_parent_of_another_type_and_a_member_given_twice_are_rejects(schema, written, why):
    [field] = parse_fields(schema)
    assert reason(Json(schema), written) == f"column 'x', {field.column.type}, from '{field.path}': {why}"


def test_members_that_no_path_uses_may_be_anything():
    value = Json("x int from 'a.b'")
    assert rows(value, b'{"a": {"b": 1, "c": [1, "x"], "d": 1, "d": 2}, "e": {"b": "x"}}') == [{"x": 1}]


def test_two_columns_may_take_one_member_in_different_types():
    value = Json(
        "n numeric(10,2) from 'a.b', t text from 'a.c', u jsonb from 'a.b', d double precision from 'a.b'"
    )
    assert [str(x) for x in rows(value, b'{"a": {"b": 1.50, "c": "x"}}')[0].values()] == [
        "1.50",
        "x",
        "1.50",
        "1.5",
    ]


@pytest.mark.parametrize(
    ("path", "position", "expected"),
    [
        ("a..b", 3, "the name of a member"),
        ("", 1, "the name of a member"),
        ("[0].a", 1, "the name of a member"),
        ("$.a", 1, "the name of a member"),
        ("a.", 3, "the name of a member"),
        ("a[x]", 2, "[] or the number of an element"),
        ("a[-1]", 2, "[] or the number of an element"),
        ("a[0]b", 5, "a dot, a bracket or the end of the path"),
        ('a"b"', 2, "a dot, a bracket or the end of the path"),
    ],
)
def test_what_is_not_a_path_is_refused_with_column_and_position(path, position, expected):
    message = refusal(f"a int, x int from '{path}'")
    assert message.startswith(f"column 'x', from {path!r}, character {position}: expected {expected}")


@pytest.mark.parametrize(
    "path", ["a", "a.b", "items[0].sku", "items[].sku", "a[][].b[2]", '"a.b".c', '"say ""x""".y', "$"]
)
def test_a_path_is_written_as_it_is_parsed(path):
    [field] = parse_fields(f"x int from '{path}'")
    assert str(field.path) == path


def test_formats_without_members_refuse_from_and_default():
    for format_ in (Csv, lambda columns: Avro(registry="http://x", fields=columns)):
        with pytest.raises(ConfigurationError, match="this format takes neither from nor default"):
            format_("a int, b int from 'c'")
        with pytest.raises(ConfigurationError, match="this format takes neither from nor default"):
            format_("a int, b int default 1")


# Defaults.


def test_a_default_stands_for_a_missing_member_and_not_for_null():
    value = Json(
        "c text from 'user.country' default 'DE', n int default 0, p numeric default 1.50, b boolean default true, "
        "d date default '2024-02-29', j jsonb default '{\"x\": 1}', l text[] default '[\"a\"]', s text default '7'"
    )
    nulls = b'{"user": {"country": null}, "n": null, "p": null, "b": null, "d": null, "j": null, "l": null, "s": null}'
    missing, parent, written = rows(value, b"{}", b'{"user": null}', nulls)
    assert missing == parent
    assert {name: str(each) for name, each in missing.items()} == {
        "c": "DE",
        "n": "0",
        "p": "1.50",
        "b": "True",
        "d": "2024-02-29",
        "j": '{"x": 1}',
        "l": "['a']",
        "s": "7",
    }
    assert set(written.values()) == {None}


def test_a_default_is_checked_when_the_pipeline_is_defined():
    assert refusal("a int default 'x'").startswith(
        "default 'x': column 'a', integer: expected number, found string."
    )
    assert refusal("a smallint default 40000").startswith("default '40000': column 'a', smallint: ")
    assert refusal("a date default '2024-02-30'").startswith("default '2024-02-30': column 'a', date: ")
    assert refusal("a int default now").startswith("default 'now': column 'a', integer: ")
    assert refusal("a jsonb default '1, \"b\": 2'").startswith("default '1, \"b\": 2': column 'a', jsonb: ")


# Elements as rows.

ORDERS = Json(
    "order_id int from 'id', sku text from 'items[].sku', quantity int from 'items[].quantity' default 1, "
    "item jsonb from 'items[]', place text from 'address.city'"
)


def test_each_element_of_an_array_is_a_row_of_its_record():
    decoded = decode(
        ORDERS,
        b'{"id": 1, "items": [{"sku": "a", "quantity": 3}, {"sku": "b"}], "address": {"city": "Ulm"}}',
        b'{"id": 2, "items": []}',
        None,
        b'{"id": 3}',
        b'{"id": 4, "items": [null]}',
    )
    assert decoded.kept.to_pylist() == [0, 0, 4]
    assert [list(row.values()) for row in decoded.rows.to_pylist()] == [
        [1, "a", 3, '{"sku": "a", "quantity": 3}', "Ulm"],
        [1, "b", 1, '{"sku": "b"}', "Ulm"],
        [4, None, 1, None, None],
    ]


def test_one_bad_element_rejects_the_whole_record():
    decoded = decode(
        ORDERS,
        b'{"id": 1, "items": [{"sku": "a"}]}',
        b'{"id": 2, "items": [{"sku": "b"}, {"sku": 5}]}',
        b'{"id": 3, "items": [{"sku": "c"}]}',
    )
    assert decoded.kept.to_pylist() == [0, 2]
    [(index, why)] = decoded.rejects
    assert index == 1
    assert why == "column 'sku', text, from 'items[].sku': items/[]/sku: expected string, found number"


def test_arrays_in_arrays_give_a_row_for_each_inner_element():
    value = Json("a int from 'x[].a', b int from 'x[].y[]', c int from 'c'")
    decoded = decode(value, b'{"c": 9, "x": [{"a": 1, "y": [1, 2]}, {"a": 2}, {"a": 3, "y": [3]}]}')
    assert [list(row.values()) for row in decoded.rows.to_pylist()] == [[1, 1, 9], [1, 2, 9], [3, 3, 9]]


def test_elements_of_two_arrays_are_refused():
    message = refusal("a int from 'x[].a', b int from 'y[].b'")
    assert message.startswith("column 'b', from 'y[].b': its array is separate from that of 'x[].a'")


def test_a_key_that_gives_several_rows_is_refused():
    with pytest.raises(ConfigurationError, match="a key or header gives one row"):
        WithKeyAndHeaders(Text("v"), key=Json("a int from 'x[]'"))


def test_a_change_without_a_key_rejects_all_changes_of_its_record():
    value = Json("id int from 'x[].id', v text from 'x[].v'")
    values = pa.array([b'{"x": [{"id": 1}, {"id": null}, {"id": null}]}', b'{"x": [{"id": 2}]}'])
    changes = as_changes(
        find_decoder(value).decode(values), values, values, None, ("id",), tombstones_delete=True
    )
    assert changes.kept.to_pylist() == [1]
    assert changes.rejects == ((0, "column 'id': the key is null"),)


def test_as_many_rows_as_records_need_not_be_one_each():
    decoded = decode(ORDERS, b'{"items": [{}, {}]}', b"{}", b'{"items": [{}]}')
    assert (len(decoded.kept), with_rows(decoded)) == (3, 2)
    assert not is_row_each(decoded, 3)
    assert is_row_each(decode(Json("a int"), b"{}", b"{}"), 2)


# The auditor's decoder shares no code with this one.

NAMES = st.sampled_from(["a", "b", "items", "é", "a.b"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2**40),
    st.floats(allow_nan=False),
    st.sampled_from(["x", "é\n", "7"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=8,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4)
LEAVES = st.sampled_from(
    ["int", "text", "jsonb", "boolean", "double precision", "numeric", "json", "numeric(20,3)"]
)
DEFAULTS = {"int": "5", "text": "'d'", "jsonb": "'[1]'", "boolean": "true", "double precision": "1.5"}
STEPS = st.sampled_from(["a", "b", "items", '"a.b"', "é"])


@st.composite
def schemas(draw: Any) -> str:
    """Columns with paths through the same members; the arrays that give rows are one inside of the other."""
    array = draw(st.sampled_from(["items[]", "a[]", "a.items[]", "items[].b[]"]))
    columns = []
    for number in range(draw(st.integers(1, 4))):
        steps = [draw(STEPS)]
        for _ in range(draw(st.integers(0, 2))):
            steps.append(draw(st.one_of(STEPS.map(lambda step: f".{step}"), st.sampled_from(["[0]", "[1]"]))))
        path = "".join(steps)
        if draw(st.booleans()):
            path = array + draw(st.sampled_from(["", ".a", ".b", ".items[0]", ".a.b"]))
        type_ = draw(LEAVES)
        default = f" default {DEFAULTS[type_]}" if type_ in DEFAULTS and draw(st.booleans()) else ""
        columns.append(f"c{number} {type_} from '{path}'{default}")
    return ", ".join(columns)


@settings(max_examples=100, deadline=None)
@example("c0 int from 'a.b'", [{"a": {"b": 1, "a": float("nan")}, "b": float("inf")}], True)
@given(schemas(), st.lists(st.one_of(OBJECTS, VALUES, st.none()), max_size=6), st.booleans())
def test_the_auditor_decodes_the_same_rows(schema, documents, compact):
    separators = (",", ":") if compact else (", ", " : ")
    values = [
        None if each is None else json.dumps(each, separators=separators).encode() for each in documents
    ]
    value = Json(schema)
    decoded, audited = (
        decode(value, *values),
        find_audited_decoder(value).decode(pa.array(values, pa.binary())),
    )
    rejected = {index for index, _ in decoded.rejects}
    # An array is read as a whole: its elements have one type, even if a path takes one of them.
    assert {index for index, _ in audited.rejects} <= rejected
    of_batch = list(zip(decoded.kept.to_pylist(), map(repr, decoded.rows.to_pylist()), strict=True))
    of_audit = list(zip(audited.kept.to_pylist(), map(repr, audited.rows.to_pylist()), strict=True))
    assert of_batch == [row for row in of_audit if row[0] not in rejected]
    assert value.gives_several_rows == ("[]" in schema)
    # One value at a time gives the same as all at once.
    alone = [decode(value, each) for each in values]
    assert [repr(row) for each in alone for row in each.rows.to_pylist()] == [row for _, row in of_batch]


@settings(max_examples=70, deadline=None)
@given(
    st.lists(st.binary(max_size=60) | OBJECTS.map(lambda each: json.dumps(each).encode()[:-1]), max_size=5)
)
def test_no_bytes_make_decoding_fail(values):
    decode(ORDERS, *values)


def test_a_format_with_defaults_travels_to_executors():
    assert pickle.loads(pickle.dumps(ORDERS)) == ORDERS
    assert rows(pickle.loads(pickle.dumps(ORDERS)), b'{"items": [{}]}')[0]["quantity"] == 1
