"""Values that are compressed or encoded, and values of several documents."""

import base64
import gzip
import json
import tracemalloc
import zlib

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exactbatch.audit.json_members import find_audited_decoder
from exactbatch.errors import ConfigurationError
from exactbatch.formats import Json
from exactbatch.formats.decoders import find_decoder
from exactbatch.formats.json import wrapped
from support.decoding import decode, reason, rows


def gzipped(value):
    return gzip.compress(value, mtime=0)  # the same bytes each time: they name tests


def zstd(value: bytes) -> bytes:
    return bytes(pa.compress(value, codec="zstd", asbytes=True))


WRITERS = {"gzip": gzipped, "zstd": zstd, "base64": base64.b64encode}
SPLIT = {
    "lines": b"\n".join,
    "concatenated": b"".join,
    "array": lambda parts: b"[" + b", ".join(parts) + b"]",
}


@pytest.mark.parametrize(
    "encoding", [("gzip",), ("zstd",), ("base64",), ("base64", "gzip"), ("gzip", "base64", "zstd")]
)
def test_a_value_is_decoded_from_the_outermost_encoding_on(encoding):
    value = b'{"a": 5}'
    for each in reversed(encoding):
        value = WRITERS[each](value)
    assert rows(Json("a int", encoding=encoding), value) == [{"a": 5}]
    assert rows(Json("x int from 'a'", encoding=encoding), value) == [{"x": 5}]
    if len(encoding) == 1:
        assert rows(Json("a int", encoding=encoding[0]), value, value) == [{"a": 5}] * 2


@pytest.mark.parametrize(
    ("encoding", "value", "why"),
    [
        (
            "gzip",
            b'{"a": 5}',
            "the value cannot be decompressed by gzip: it does not begin with 1f 8b",
        ),
        (
            "gzip",
            zlib.compress(b'{"a": 5}'),
            "the value cannot be decompressed by gzip: it does not begin with 1f 8b",
        ),
        (
            "gzip",
            gzipped(b'{"a": 5}')[:-5],
            "the value cannot be decompressed by gzip: Truncated compressed stream",
        ),
        ("gzip", gzipped(b'{"a": 5}') + b"x", "the value cannot be decompressed by gzip: "),
        ("gzip", b"", "the value is not compressed by gzip: it decompresses to nothing"),
        (
            "zstd",
            zstd(b'{"a": 5}')[:-1],
            "the value cannot be decompressed by zstd: Truncated compressed stream",
        ),
        ("base64", b"eyJhIjogNX0", "the value is not base64: Incorrect padding"),
        ("base64", b"ey*hIjogNX0=", "the value is not base64: "),
    ],
)
def test_a_value_that_is_not_encoded_so_is_a_reject(encoding, value, why):
    assert reason(Json("a int", encoding=encoding), value).startswith(why)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_value_that_decompresses_to_too_much_is_a_reject(encoding):
    bomb = WRITERS[encoding](b" " * (wrapped.MOST_BYTES + 1))
    assert len(bomb) < 100_000
    assert reason(Json("a int", encoding=encoding), bomb) == (
        f"the value decompresses by {encoding} to more than 67108864 bytes, which is the limit"
    )


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_the_auditor_reads_no_more_than_the_limit(encoding):
    bomb = WRITERS[encoding](b" " * (wrapped.MOST_BYTES + 1))
    audited = find_audited_decoder(Json("a int", encoding=encoding)).decode(pa.array([bomb], pa.binary()))
    assert audited.rejects == ((0, "the value decompresses to more than 67108864 bytes"),)


@pytest.mark.parametrize("find", [find_decoder, find_audited_decoder])
@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_value_whose_end_is_broken_leaves_nothing_in_memory(encoding, find):
    values = pa.array([WRITERS[encoding](b" " * wrapped.MOST_BYTES)[:-1]], pa.binary())
    decoder = find(Json("a int", encoding=encoding))
    tracemalloc.start()
    try:
        assert len(decoder.decode(values).rejects) == 1
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < wrapped.MOST_BYTES / 2


def test_the_auditor_ends_lines_where_batches_do():
    format_ = Json("a int", documents="lines")
    audited = find_audited_decoder(format_).decode(pa.array([b'{"a":\r 1}\r\n{"a": 2}'], pa.binary()))
    assert audited.rows.to_pylist() == rows(format_, b'{"a":\r 1}\r\n{"a": 2}') == [{"a": 1}, {"a": 2}]


DEEP = b'{"a": {"b": "x"}, "other": ' + b"[" * 2000 + b"]" * 2000 + b"}"


@pytest.mark.parametrize(
    ("schema", "options", "values"),
    [
        ("n text from 'a.b'", {}, [b'{"a": {"b": "y"}}', DEEP, None, b"{", DEEP[:-1], b'{"a": {"b": "z"}}']),
        ("n text from 'a.b' default 'z'", {}, [DEEP, b"{}"]),
        ("a text from 'a.b'", {"encoding": "gzip"}, [gzipped(DEEP), gzipped(b"{}")]),
        ("a text from 'a.b'", {"documents": "lines"}, [b"{}\n" + DEEP + b"\n{}", DEEP, b"{}\n{}"]),
        ("a text from 'a.b'", {"documents": "array"}, [b"[" + DEEP + b"]", b"[{}]"]),
        ("a text from 'a.b'", {"documents": "concatenated"}, [DEEP + DEEP, b"{}{}"]),
        ("a jsonb from 'other'", {}, [DEEP, b"{}"]),
    ],
    ids=["path", "default", "encoding", "lines", "array", "concatenated", "json"],
)
def test_the_auditor_decodes_what_is_nested_deeper_than_its_parser_goes(schema, options, values):
    format_ = Json(schema, **options)
    decoded, audited = (
        decode(format_, *values),
        find_audited_decoder(format_).decode(pa.array(values, pa.binary())),
    )
    assert audited.rows.equals(decoded.rows)
    assert audited.kept.equals(decoded.kept)
    assert [index for index, _ in audited.rejects] == [index for index, _ in decoded.rejects]
    assert audited.tombstones == decoded.tombstones


def test_values_are_decoded_in_parts_of_bounded_size(monkeypatch):
    monkeypatch.setattr(wrapped, "_TOGETHER", 20)
    value = Json("a int", documents="lines")
    decoded = decode(value, b'{"a": 1}\n{"a": 2}', b'{"a": 3}', None, b'{"a": "x"}\n{"a": 5}', b'{"a": 6}')
    assert decoded.kept.to_pylist() == [0, 0, 1, 4]
    assert decoded.rows.column("a").to_pylist() == [1, 2, 3, 6]
    assert decoded.rejects == ((3, "column 'a', integer: expected number, found string"),)


@pytest.mark.parametrize("documents", SPLIT)
def test_each_document_of_a_value_is_a_row(documents):
    value = Json("a int", documents=documents)
    joined = [
        SPLIT[documents]([b'{"a": 1}', b'{"a": 2}']),
        SPLIT[documents]([]),
        None,
        SPLIT[documents]([b'{"a": 3}']),
    ]
    decoded = decode(value, *joined)
    assert decoded.kept.to_pylist() == [0, 0, 3]
    assert decoded.rows.column("a").to_pylist() == [1, 2, 3]
    assert decoded.tombstones == 1


def test_what_is_between_documents_is_nothing():
    assert rows(Json("a int", documents="lines"), b'\r\n{"a": 1}\r\n\n {"a": 2} ') == [{"a": 1}, {"a": 2}]
    assert rows(Json("a int", documents="concatenated"), b' {"a": 1}\n{"a": 2}  ') == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("documents", "value", "why"),
    [
        ("array", b'{"a": 1}', "expected a JSON array of documents: [ … ]"),
        ("array", b'[{"a": 1}], "x": []', "JSON is malformed: trailing characters"),
        ("array", b'[{"a": 1}, null]', "expected a JSON object"),
        ("array", b"[" * 10_000, "expected fewer than 900 levels of nesting, found more"),
        ("concatenated", b'{"a": 1}{', "the last object is not closed"),
        ("concatenated", b'{"a": 1}}', "found a brace that closes none"),
        ("concatenated", b'{"a": 1}2', "expected a JSON object"),
        ("lines", b'{"a": 1}{"a": 2}', "found 2 objects in 1 values"),
    ],
)
def test_one_bad_document_rejects_the_whole_value(documents, value, why):
    assert why in reason(Json("a int", documents=documents), value) or documents == "lines"
    assert decode(Json("a int", documents=documents), value).kept.to_pylist() == []


def test_a_value_with_too_many_objects_is_a_reject_before_they_are_searched(monkeypatch):
    monkeypatch.setattr(wrapped, "_MOST_OBJECTS", 3)
    json_ = Json("a int", documents="concatenated")
    assert rows(json_, b'{"a":1}' * 3) == [{"a": 1}] * 3
    said = "the value has more than 3 opening braces, which is the limit"
    assert reason(json_, b'{"a":1}' * 4) == reason(json_, b"{" * 4) == said


@pytest.mark.parametrize("type_", ["text", "int", "jsonb[]", "public.hstore"])
def test_only_json_takes_the_whole_value(type_):
    with pytest.raises(ConfigurationError, match="only json and jsonb take the whole value"):
        Json(f"a {type_} from '$'")


def test_an_unknown_encoding_is_refused():
    for wrong in ({"encoding": "lz4"}, {"encoding": ("gzip", "x")}, {"documents": "two"}):
        with pytest.raises(ConfigurationError):
            Json("a int", **wrong)


OBJECTS = st.lists(st.dictionaries(st.sampled_from("ab"), st.sampled_from([1, 2, None, "x"])), max_size=4)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(OBJECTS, max_size=5),
    st.sampled_from(list(SPLIT)),
    st.lists(st.sampled_from(list(WRITERS)), max_size=2),
    st.binary(max_size=20),
    st.integers(0, 30),
)
def test_the_auditor_decodes_the_same_rows(values, documents, encoding, noise, cut):
    format_ = Json("n int from 'a', b int", documents=documents, encoding=tuple(encoding))
    written = []
    for number, objects in enumerate(values):
        value = SPLIT[documents]([json.dumps(each).encode() for each in objects])
        for each in reversed(encoding):
            value = WRITERS[each](value)
        written.append(value[:cut] + noise if number == 2 else value)
    decoded, audited = (
        decode(format_, *written),
        find_audited_decoder(format_).decode(pa.array(written, pa.binary())),
    )
    assert {index for index, _ in decoded.rejects} >= {index for index, _ in audited.rejects}
    if 2 not in {index for index, _ in decoded.rejects}:
        assert decoded.rows.to_pylist() == audited.rows.to_pylist()
        assert decoded.kept.equals(audited.kept)


def test_an_enveloped_null_among_documents_is_a_reject():
    null, row = b'{"schema":null,"payload":null}', b'{"schema":null,"payload":{"id":1}}'
    decoded = decode(Json("id int from 'payload.id'", documents="lines"), null + b"\n" + row, row, null)
    assert decoded.rows.to_pylist() == [{"id": 1}]
    assert [(at, reason.partition(",")[0]) for at, reason in decoded.rejects] == [
        (0, "the value is a null in the envelope of Kafka Connect's JSON converter"),
        (2, "the value is a null in the envelope of Kafka Connect's JSON converter"),
    ]
