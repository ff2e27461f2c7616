"""Keys and headers of records, next to their values."""

import base64
import json
from collections.abc import Mapping, Sequence
from operator import methodcaller
from typing import Any, Final, Protocol

import pyarrow as pa

UNREADABLE: Final = (
    "headers: a name is not UTF-8, so librdkafka's client cannot read the headers, and they are stored as []"
)

_headers = methodcaller("headers")


class Unreadable(tuple[()]):
    """A marker for headers that the client cannot read; empty, as they are when they are stored."""


Header = bytes | Unreadable | None


class Messages(Protocol):
    """Keys and headers of n records, each read on first use."""

    def keys(self) -> pa.BinaryArray:
        """Key bytes; null for a null key."""
        ...

    def headers(self) -> Sequence[Any]:
        """Headers of each record, as read_headers() returns them."""
        ...

    def last_headers(self, name: str) -> Mapping[int, Header]:
        """The last header of a name of each record that has one, by the index of the record; and Unreadable for a
        record whose headers cannot be read."""
        ...


def read_headers(messages: Sequence[Any]) -> list[Any]:
    """Return the headers of each Kafka message: a list of (name, bytes or None), None, or Unreadable.

    No other code may read a message's headers. If a name is not UTF-8, which Kafka allows, confluent_kafka sets an
    exception and returns a list that contains a null pointer; the next call returns that list without the exception,
    and reading it crashes the process. The interpreter misses the exception once it has specialised the call;
    methodcaller, written in C, does not.
    """
    found: list[Any] = []
    while len(found) < len(messages):
        try:
            found.extend(map(_headers, messages[len(found) :]))
        except (SystemError, UnicodeDecodeError):
            messages[len(found)].set_headers(Unreadable())
            found.append(Unreadable())
    return found


def last_headers(headers: Sequence[Any], name: str) -> dict[int, Header]:
    """Return what Messages.last_headers() does, from the headers of each record."""
    found: dict[int, Header] = {}
    if headers.count(None) == len(headers):
        return found
    for index, pairs in enumerate(headers):
        if isinstance(pairs, Unreadable):
            found[index] = pairs
        elif pairs:
            for own, value in pairs:
                if own == name:
                    found[index] = value
    return found


def header_size(headers: Any) -> int:
    """Return the bytes of the names and values of a record's headers."""
    return sum(len(name) + len(value or b"") for name, value in headers) if headers else 0


def headers_as_json(headers: Any) -> str:
    """Return headers, a list of (name, bytes or None), as a JSON list of [name, value in base64 or null].

    jsonb cannot store U+0000, so that a name has it as the text \\u0000.
    """
    if not headers:
        return "[]"
    return json.dumps(
        [
            [name.replace("\0", "\\u0000"), None if value is None else base64.b64encode(value).decode()]
            for name, value in headers
        ]
    )
