"""Key and headers become columns of the row, and a record stays one row, one reject or one tombstone."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exactbatch import Pipeline, Upsert
from exactbatch.errors import ConfigurationError
from exactbatch.formats import Json, Raw, Text, WithKeyAndHeaders
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.message.decoder import RecordDecoder

Header = tuple[str, bytes | None]


@dataclass
class Message:
    """A record: value, key, headers."""

    value: bytes | None = b'{"a":1}'
    key: bytes | None = None
    headers: list[Header] | None = None


@dataclass
class Messages:
    """Records that tell which columns they were asked for."""

    messages: Sequence[Message]
    asked: list[str]

    def keys(self) -> pa.BinaryArray:
        self.asked.append("keys")
        return pa.array([each.key for each in self.messages], pa.binary())

    def headers(self) -> list[Any]:
        self.asked.append("headers")
        return [each.headers for each in self.messages]


def decode(format_: WithKeyAndHeaders, *messages: Message, asked: list[str] | None = None) -> Decoded:
    values = pa.array([each.value for each in messages], pa.binary())
    decoded = RecordDecoder(format_).decode(values, Messages(messages, [] if asked is None else asked))
    types = [(column.name, column.arrow_type) for column in format_.columns]
    assert [(field.name, field.type) for field in decoded.rows.schema] == types
    decoded.rows.validate(full=True)
    told = [*decoded.kept.to_pylist(), *(index for index, _ in decoded.rejects)]
    assert decoded.kept.to_pylist() == sorted(decoded.kept.to_pylist())
    assert list(decoded.rejects) == sorted(decoded.rejects)
    assert len(decoded.rows) == len(decoded.kept)
    assert len(told) == len(set(told)) == len(messages) - decoded.tombstones
    return decoded


def rows(format_: WithKeyAndHeaders, *messages: Message) -> list[dict[str, Any]]:
    decoded = decode(format_, *messages)
    assert decoded.rejects == ()
    return decoded.rows.to_pylist()


def test_a_key_is_a_column_of_any_format():
    for key, written, there in (
        (Text("k"), "é".encode(), {"k": "é"}),
        (Raw("k"), b"\xff\0", {"k": b"\xff\0"}),
        (Json("x int, y text"), b'{"x":1}', {"x": 1, "y": None}),
    ):
        format_ = WithKeyAndHeaders(Json("a int"), key=key)
        assert rows(format_, Message(key=written)) == [{"a": 1, **there}]


def test_a_null_key_is_null_in_its_columns():
    for key in (Text("k"), Raw("k"), Json("k int")):
        format_ = WithKeyAndHeaders(Json("a int"), key=key)
        assert rows(format_, Message(), Message(b'{"a":2}')) == [{"a": 1, "k": None}, {"a": 2, "k": None}]


def test_a_key_that_does_not_decode_is_a_reject():
    format_ = WithKeyAndHeaders(Json("a int"), key=Text("k"))
    decoded = decode(
        format_,
        Message(key=b"0"),
        Message(key=b"\xff"),
        Message(b"x", b"\xff"),
        Message(key=b"3"),
        Message(None),
    )
    assert decoded.rows.to_pylist() == [{"a": 1, "k": "0"}, {"a": 1, "k": "3"}]
    assert decoded.kept.to_pylist() == [0, 3]
    assert decoded.tombstones == 1
    assert decoded.rejects == (
        (1, "key: found byte FF at position 0, which is not UTF-8"),
        (2, "expected a JSON object: { … }"),
    )


def test_a_header_is_a_column_and_the_last_of_its_name_counts():
    format_ = WithKeyAndHeaders(Json("a int"), headers={"trace-id": Text("trace"), "n": Json("n int")})
    assert rows(
        format_,
        Message(headers=[("trace-id", b"x"), ("n", b'{"n":5}'), ("trace-id", b"y")]),
        Message(headers=None),
        Message(headers=[("trace-id", None), ("other", b"\xff")]),
    ) == [
        {"a": 1, "trace": "y", "n": 5},
        {"a": 1, "trace": None, "n": None},
        {"a": 1, "trace": None, "n": None},
    ]
    [(index, why)] = decode(format_, Message(), Message(headers=[("n", b"5")])).rejects
    assert (index, why) == (1, "header 'n': expected a JSON object: { … }")


def test_all_headers_are_a_list_in_order():
    format_ = WithKeyAndHeaders(Json("a int"), all_headers="h")
    found = rows(format_, Message(headers=[("é\0", b"\xff"), ("x", None), ("x", b"")]), Message())
    assert [json.loads(row["h"]) for row in found] == [[["é\\u0000", "/w=="], ["x", None], ["x", ""]], []]


def test_only_what_is_wanted_is_asked_for():
    for format_, wanted in (
        (WithKeyAndHeaders(Json("a int")), []),
        (WithKeyAndHeaders(Json("a int"), key=Text("k")), ["keys"]),
        (WithKeyAndHeaders(Json("a int"), all_headers="h", headers={"x": Raw("x")}), ["headers"]),
    ):
        asked: list[str] = []
        decode(format_, Message(), asked=asked)
        assert asked == wanted


def test_a_null_value_is_what_it_is_for_the_value_format():
    message = Message(None, key=b"k")
    assert decode(WithKeyAndHeaders(Json("a int"), key=Text("k")), message).tombstones == 1
    assert rows(WithKeyAndHeaders(Text("a"), key=Text("k")), message) == [{"a": None, "k": "k"}]


def test_a_column_given_twice_is_refused():
    for wrong in ({"key": Text("a")}, {"all_headers": "a"}, {"key": Raw("k"), "headers": {"x": Text("k")}}):
        with pytest.raises(ConfigurationError, match="occur more than once in value, key and headers"):
            WithKeyAndHeaders(Json("a int"), **wrong)


PARTS = st.sampled_from([None, b"", b"x", b"\xff", b"{}", b'{"k":1}', b'{"k":"1"}', b"a\0", b'{"a":2}'])
MESSAGES = st.builds(
    Message,
    PARTS | st.just(b'{"a":1}'),
    PARTS,
    st.none() | st.lists(st.tuples(st.sampled_from(["x", "y"]), PARTS), max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(MESSAGES, max_size=12))
def test_a_block_of_records_decodes_as_they_do_one_by_one(messages):
    for format_ in (
        WithKeyAndHeaders(
            Json("a int"), key=Json("k int"), headers={"x": Text("x"), "y": Json("y int")}, all_headers="h"
        ),
        WithKeyAndHeaders(Raw("a"), key=Text("k"), headers={"x": Raw("x")}),
    ):
        block = decode(format_, *messages)
        alone = [decode(format_, each) for each in messages]
        assert block.rows.to_pylist() == [row for each in alone for row in each.rows.to_pylist()]
        assert block.kept.to_pylist() == [i for i, each in enumerate(alone) if len(each.kept)]
        assert block.rejects == tuple((i, why) for i, each in enumerate(alone) for _, why in each.rejects)


def test_a_message_is_no_part_of_a_message_and_no_key():
    inner = WithKeyAndHeaders(Json("a int"), all_headers="all")
    for parts in ({"value": inner}, {"key": inner}, {"headers": {"h": inner}}):
        with pytest.raises(
            ConfigurationError, match="format of a value, key or header, found WithKeyAndHeaders"
        ):
            WithKeyAndHeaders(**{"value": Json("b int")} | parts)
    with pytest.raises(
        ConfigurationError,
        match="expected the format of message keys as message_key, found WithKeyAndHeaders",
    ):
        Pipeline(
            name="p",
            topics=("t",),
            value=Json("a int"),
            message_key=inner,
            sink=Upsert("public.t", key=("a",)),
        )
