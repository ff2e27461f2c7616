"""What replaces text that Postgres cannot hold, and nothing else."""

import json

import pyarrow as pa
import pytest

from exactbatch import Append, Avro, Csv, Debezium, Json, Pipeline, Raw, Text, Upsert, WithKeyAndHeaders
from exactbatch.errors import ConfigurationError
from exactbatch.testing import Record, decode

PIPELINE = Pipeline(
    name="notes",
    topics=("notes",),
    value=Json("id int, t text, b jsonb, j json"),
    sink=Append("public.note"),
    replace_unstorable="?",
    max_rejects=9,
)


@pytest.mark.parametrize(
    ("value", "row"),
    [
        (rb'{"t":"a\u0000\\u0000\\\u0000b"}', ("a?\\u0000\\?b", None, None)),
        (rb'{"t":"\ud83d\ude00\ud83d"}', ("😀?", None, None)),
        (rb'{"t":"\ud83d\ud83d\ude00"}', ("?😀", None, None)),
        (rb'{"t":"\udE00\uD83D"}', ("??", None, None)),
        (b'{"t":"\xff\xc3","other":"\xed\xa0\x80"}', ("??", None, None)),
        (rb'{"b":{"\u0000":["\\u0000","\u0000"]}}', (None, r'{"?":["\\u0000","?"]}', None)),
        (rb'{"j":"\u0000"}', (None, None, r'"\u0000"')),
        (rb'{"j":"\u0000","t":"\u0000"}', ("?", None, '"?"')),
        (rb'{"t":"\n\"\/\u0041","other":"\ud800"}', ('\n"/A', None, None)),
    ],
)
def test_a_record_has_the_replacement_only_where_postgres_cannot_hold_its_text(value, row):
    loaded = decode(PIPELINE, [b'{"id":1,"t":"x"}', value, b'{"id":2,"t":"y"}'])
    assert loaded.rejects == []
    assert [tuple(each[name] for name in "tbj") for each in loaded.rows][1] == row
    assert [each["id"] for each in loaded.rows] == [1, None, 2]


def test_other_rejects_stay_and_give_their_reason():
    loaded = decode(PIPELINE, [rb'{"id":"x","t":"\u0000"}', b'{"id":"x"}', b'{"t":\xff}', b"\0{}"])
    assert loaded.rows == []
    assert [each.reason for each in loaded.rejects] == [
        "column 'id', integer: expected number, found string",
        "column 'id', integer: expected number, found string",
        "expected one JSON object: Invalid value.",
        "expected a JSON object: { … }, found U+0000 (a control character) at the start",
    ]


def test_two_names_that_become_one_are_a_reject():
    loaded = decode(PIPELINE, [rb'{"id":1,"b":{"\u0000":1,"?":2}}'])
    [row] = loaded.rows  # Postgres refuses the document, which names a field twice
    assert row["b"] == '{"?":1,"?":2}'


def test_changes_and_tombstones_are_replaced_alike():
    pipeline = Pipeline(
        name="notes",
        topics=("notes",),
        value=Debezium("id text, t text, o text"),
        sink=Upsert("public.note", key=("id",)),
        replace_unstorable="",
    )
    loaded = decode(
        pipeline,
        [
            rb'{"op":"c","after":{"id":"a\u0000","t":"x"}}',
            rb'{"op":"c","after":{"id":"b","t":"y"}}',
            rb'{"op":"u","after":{"id":"b","t":"__debezium_unavailable_value","o":"\u0000"}}',
            rb'{"op":"d","before":{"id":"a\u0000"}}',
        ],
    )
    assert [(each["id"], each["deleted"], each["unchanged_columns"]) for each in loaded.rows] == [
        ("a", False, None),
        ("b", False, None),
        ("b", False, ["t"]),
        ("a", True, None),
    ]


def test_only_formats_of_text_have_it():
    for value in (Raw("b"), Avro('{"type":"record","name":"r","fields":[{"name":"a","type":"int"}]}')):
        with pytest.raises(ConfigurationError, match="replace_unstorable concerns Json"):
            Pipeline(name="p", topics=("t",), value=value, sink=Append("public.t"), replace_unstorable="?")
    with pytest.raises(ConfigurationError, match="replace_unstorable concerns Json"):
        Pipeline(
            name="p",
            topics=("t",),
            value=Json("a int", encoding="gzip"),
            sink=Append("t.t"),
            replace_unstorable="",
        )
    with_key = WithKeyAndHeaders(Raw("b"), key=Text("k"))
    Pipeline(name="p", topics=("t",), value=with_key, sink=Append("t.t"), replace_unstorable="")


@pytest.mark.parametrize("text", ['"', "\\", "\0", "\n", "a;b", "\ud800"])
def test_a_replacement_that_could_change_more_is_refused(text):
    with pytest.raises(ConfigurationError, match="replace_unstorable: expected printable text"):
        Pipeline(
            name="p",
            topics=("t",),
            value=Csv("a text", delimiter=";"),
            sink=Append("t.t"),
            replace_unstorable=text,
        )


@pytest.mark.parametrize("header", [{"h": Text("h")}, {}])
def test_headers_of_other_names_stay(header):
    pipeline = Pipeline(
        name="p",
        topics=("t",),
        value=WithKeyAndHeaders(Csv("n text"), headers=header, all_headers="all_headers"),
        sink=Append("public.t"),
        replace_unstorable="?",
    )
    [row] = decode(pipeline, [Record(b"x\0", headers=[("h", b"\0"), ("other", b"\0")])]).rows
    assert (row["n"], row.get("h")) == ("x?", "?" if header else None)
    found = dict(json.loads(row["all_headers"]))
    assert found == {"h": "Pw==" if header else "AA==", "other": "AA=="}


def test_arrow_agrees_with_python_about_valid_text():
    for value in (b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xff"):
        with pytest.raises(pa.ArrowInvalid):
            pa.array([value], pa.binary()).cast(pa.string())
        with pytest.raises(UnicodeDecodeError):
            value.decode()
