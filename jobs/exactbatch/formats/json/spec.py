"""The formats Json, objects of JSON, and JsonSchema, the same after the header of a schema registry."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from exactbatch.columns import Column, Field, parse_fields
from exactbatch.formats.declared_fields import (
    check_arrays,
    check_epoch,
    check_member_names,
    check_whole,
    gives_rows_of_elements,
    reads_payloads,
)
from exactbatch.formats.format import Format
from exactbatch.formats.registry.location import check_address
from exactbatch.options import check_types, list_values

Encoding = Literal["gzip", "zstd", "base64"]
Documents = Literal["one", "lines", "concatenated", "array"]


@dataclass(frozen=True)
class Json(Format):
    """Values are JSON objects; `schema` names the fields to take, such as `"year int, carrier text"`.

    A column takes another member with `from`, such as `"user_id bigint from 'user.id', sku text from 'items[0].sku'"`,
    and `default` gives what a missing member counts as. Elements of an array become rows with `[]`, as in
    `"id int, sku text from 'items[].sku'"`; one bad element makes the whole record a reject.

    encoding   how the value is compressed or encoded: "gzip", "zstd", "base64", or several, the outermost first
    documents  "one" object in each value; "lines" or "concatenated" objects, or an "array" of them. Each gives rows

    Decoding is strict: a number for a text column, a fraction for an integer, a number out of range, or a field
    given twice makes the record a reject. A missing field is null; fields that are not named are ignored. Only a
    numeric column takes a number from a string. json and jsonb keep the text of any field. Types that Postgres reads
    from text, such as uuid, take a string; arrays take an array of what their element type takes.

    Timestamps and dates are ISO 8601 strings; a timestamptz without an offset is in UTC, and a timestamp with an
    offset is converted to UTC. If they are numbers since 1970, `epoch` names the unit, as in `{"created": "ms"}`:
    s, ms, us or ns for a timestamp, d for a date. Nanoseconds are truncated to microseconds.

    A null value is a tombstone: it is counted and gives no row. If a column takes a member of `payload`, so is the
    envelope of a null, {"schema":null,"payload":null}. Raises ConfigurationError for an invalid schema.
    """

    schema: str
    epoch: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)
    encoding: Encoding | tuple[Encoding, ...] = field(default=(), kw_only=True)
    documents: Documents = field(default="one", kw_only=True)

    def __post_init__(self) -> None:
        check_types(self)
        check_epoch(self.epoch, self.columns)
        check_member_names(self.fields)
        check_arrays(self.fields)
        check_whole(self.fields)
        if any(each.default is not None for each in self.fields):
            # Arrow reads the defaults, as it reads the members that they stand for.
            from exactbatch.formats.json.member_columns import read_defaults

            read_defaults(self.fields, self.epoch)

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The columns, and what each takes."""
        return parse_fields(self.schema)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the schema."""
        return tuple(each.column for each in self.fields)

    @property
    def is_plain(self) -> bool:
        """True if a value is one object, and each column takes the member of its own name."""
        return not self.is_wrapped and all(each.is_plain for each in self.fields)

    @property
    def encodings(self) -> tuple[Encoding, ...]:
        """The encodings of a value, the outermost first."""
        return list_values(self.encoding)

    @property
    def is_wrapped(self) -> bool:
        """True if a value is compressed or encoded, or has several documents."""
        return bool(self.encodings) or self.documents != "one"

    @property
    def own_members(self) -> Mapping[str, str] | None:
        """The name of the member that each column takes, by column; None unless a value is one object, and all take
        different members of it itself, and null for a missing one."""
        if self.is_wrapped:
            return None
        members: dict[str, str] = {}
        for each in self.fields:
            if (name := each.own_member) is not None:
                members[each.column.name] = name
        is_own = len(members) == len(self.fields) == len(set(members.values()))
        return members if is_own else None

    @property
    def gives_several_rows(self) -> bool:
        """True if a value gives any number of rows."""
        return self.documents != "one" or gives_rows_of_elements(self.fields)

    @cached_property
    def reads_payloads(self) -> bool:
        """True if a value is one object, and a column takes a member of its `payload`, as in the envelope of Kafka
        Connect's JSON converter."""
        return not self.is_wrapped and reads_payloads(self.fields)


@dataclass(frozen=True)
class JsonSchema(Format):
    """Values as Confluent's JSON Schema serializer writes them: byte 0, the ID of a schema in 4 bytes, and JSON; or
    JSON alone, and the schema in a header.

    schema    the columns, with paths and defaults, as for Json
    registry  the address of the schema registry, such as "http://host:8081"
    epoch     as for Json

    The registry must have a JSON schema under the ID; otherwise the record is a reject. The columns decide what a value
    has to be: the schema itself is not evaluated. A null value is a tombstone.

    Raises ConfigurationError for an invalid schema; decode() raises RegistryUnavailable if the registry cannot be
    reached.
    """

    schema: str
    registry: str = field(kw_only=True)
    epoch: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)
    properties: Mapping[str, Any] = field(default_factory=dict, kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_types(self)
        check_address(self.registry)
        _ = self.body

    @cached_property
    def body(self) -> Json:
        """The format of the JSON."""
        return Json(self.schema, epoch=self.epoch)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the JSON."""
        return self.body.columns

    @property
    def reads_schema_ids(self) -> bool:
        """True: a registry has the schemas of the values."""
        return True

    @property
    def gives_several_rows(self) -> bool:
        """True if a value gives any number of rows."""
        return self.body.gives_several_rows
