"""The formats Debezium and Flattened: change events as JSON, with or without their schema, or as Avro with a registry.

Debezium is one class, because every option of the format meets each of these three encodings. Flattened has the events
that ExtractNewRecordState has flattened to rows. What a row means, its types, values that were left out and all options
are Debezium's: only where the row is, and how an event says what happened to it, differs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final, Literal

from exactbatch.columns import Column, Field, parse_fields
from exactbatch.errors import ConfigurationError
from exactbatch.formats.debezium.commit_positions import CommitPosition, find_position, version_columns
from exactbatch.formats.declared_fields import BinaryText, check_member_names
from exactbatch.formats.format import Format
from exactbatch.formats.registry.location import check_address
from exactbatch.options import check_types, list_values

Times = Literal[
    "adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"
]

TIMESTAMP: Final = "timestamp without time zone"
TIMESTAMPS: Final = (TIMESTAMP, "timestamp with time zone")
TIME: Final = "time without time zone"
TEMPORAL: Final = (*TIMESTAMPS, "date", TIME, "time with time zone")
# The unit that a mode gives all timestamps, and all times of day; adaptive modes give each column its own.
UNITS: Final[Mapping[str, tuple[str | None, str | None]]] = {
    "connect": ("ms", "ms"),
    "microseconds": ("us", "us"),
    "nanoseconds": ("ns", "ns"),
    "adaptive": (None, None),
    "adaptive_time_microseconds": (None, "us"),
}
Decimals = Literal["precise", "double", "string"]
DELETED: Final = "__deleted"
OP: Final = "__op"
_ADDED: Final = "__"  # the default of add.fields.prefix


def check_units(epoch: Mapping[str, str], times: str | None, columns: Sequence[Column]) -> None:
    """Raise ConfigurationError for a unit that does not suit its column, and for a column that the mode gives none."""
    types = {column.name: column.type for column in columns}
    for name, unit in epoch.items():
        type_ = types.get(name, "which is not a column")
        units = ("d",) if type_ == "date" else ("ms", "us", "ns") if type_ in (*TIMESTAMPS, TIME) else ()
        if unit not in units:
            raise ConfigurationError(
                f"epoch: expected one of the units ms, us and ns for a column of type timestamp or time, or d for a "
                f"date, found {unit!r} for {name!r}, {type_}"
            )
    if times not in ("adaptive", "adaptive_time_microseconds"):
        return
    of_moments, of_clocks = UNITS[times]
    for name, type_ in types.items():
        lacks = (type_ == TIMESTAMP and of_moments is None) or (type_ == TIME and of_clocks is None)
        if lacks and name not in epoch:
            raise ConfigurationError(
                f"times={times!r}: the unit of column {name!r} depends on its precision at the source, which an event "
                f"without a schema does not say. Add it to epoch: ms for a precision of 0 to 3 digits, us for 4 to 6, "
                f"ns for 7 to 9, as in epoch={{{name!r}: 'us'}}. Events with a schema need neither option."
            )


@dataclass(frozen=True)
class Debezium(Format):
    """Values are Debezium's envelopes {before, after, op, source}: JSON, bare or as the payload next to their schema,
    or Avro.

    schema       the columns of the row, as for Json. A column takes a field of another name with `from`, such as
                 `"is_deleted boolean from 'deleted'"`, but no path and no default
    version      the position of a change's commit, which becomes columns: a connector's name (postgres, mysql,
                 mariadb, sqlserver, oracle), or another integer field of `source`
    source       text fields of `source` that become columns: "table" becomes source_table, by which a Route finds the
                 target of an event
    unavailable  the connector's unavailable.value.placeholder: the source left the value of a column out. An
                 Upsert with a history keeps the value that the row had; any other pipeline rejects the event
    binary       how the connector writes bytes into text (binary.handling.mode): "base64", "base64-url-safe" or "hex".
                 Bytes of its default setting, bytes, need no declaration
    registry     the address of a Confluent schema registry, such as "http://host:8081": values then are Avro bodies
                 that begin with byte 0 and the ID of their schema, or a header of the record has it
    truncate     what a truncate of the table becomes: "reject", or with "apply" the deletion of all rows of an Upsert
                 whose latest change is older; this needs a version

    The following are for events without a schema; a schema says it itself:

    epoch        what numbers count since 1970 or midnight, as in `{"created": "us"}`: ms, us or ns, or d for a date
    times        the connector's time.precision.mode
    decimals     the connector's decimal.handling.mode; with "precise", a numeric column has the scale of its source

    A row is `after`, or for a delete `before`, which needs only the key. The tombstone that follows a delete is
    counted and has no further effect, and so are events that carry no row: logical decoding messages, heartbeats,
    transaction metadata and schema changes.

    Raises ConfigurationError for a version that does not order changes, or is a column of the row, and for
    declarations that do not suit their columns; decode() raises RegistryUnavailable if the registry cannot be reached.
    """

    tombstone_deletes: ClassVar[bool] = False
    has_unavailable_values: ClassVar[bool] = True

    schema: str
    version: str | None = None
    source: str | tuple[str, ...] = field(default=(), kw_only=True)
    unavailable: str = field(default="__debezium_unavailable_value", kw_only=True)
    binary: BinaryText | None = field(default=None, kw_only=True)
    epoch: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)
    times: Times | None = field(default=None, kw_only=True)
    decimals: Decimals | None = field(default=None, kw_only=True)
    registry: str | None = field(default=None, kw_only=True)
    truncate: Literal["reject", "apply"] = field(default="reject", kw_only=True)
    properties: Mapping[str, Any] = field(default_factory=dict, kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_types(self)
        _check_fields(self.fields)
        row = tuple(each.column for each in self.fields)
        for column in version_columns(self.position):
            if column.name in [of_row.name for of_row in row]:
                raise ConfigurationError(
                    f"version={self.version!r}: {column.name!r}, a part of the position, is also a column of the row: "
                    f"rename the column, as in \"row_{column.name} bigint from '{column.name}'\""
                )
        for name, column in self.source_columns.items():
            if not name or column.name in [of_row.name for of_row in (*row, *version_columns(self.position))]:
                raise ConfigurationError(
                    f"source={name!r}: expected a field of source whose column, {column.name!r}, is no column of the "
                    f"row or the version. Rename that one, as in \"row_{column.name} text from '{column.name}'\""
                )
        if not self.unavailable:
            raise ConfigurationError(
                "unavailable='': expected the connector's unavailable.value.placeholder, which is not empty"
            )
        check_units(self.epoch, self.times, row)
        check_address(self.registry)
        if self.registry is not None and (self.epoch or self.times or self.decimals):
            raise ConfigurationError(
                f"{type(self).__name__} with a registry: the schemas say what epoch, times and decimals would declare. "
                f"Remove them."
            )

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The columns of the row, and the field that each takes."""
        return parse_fields(self.schema)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the row, of the source and of the version."""
        row = (each.column for each in self.fields)
        return (*row, *self.source_columns.values(), *version_columns(self.position))

    @cached_property
    def source_columns(self) -> Mapping[str, Column]:
        """The column of each field in `source`."""
        return {name: Column(f"source_{name}", "text") for name in list_values(self.source)}

    @property
    def reads_schema_ids(self) -> bool:
        """True if a registry has the schemas of the values."""
        return self.registry is not None

    @property
    def truncate_order(self) -> tuple[str, ...] | None:
        """The columns of the version, which order truncates that are applied; None if a truncate is a reject."""
        return self.position_columns if self.truncate == "apply" else None

    @property
    def position_columns(self) -> tuple[str, ...]:
        """The columns of the version; () if there is none."""
        return tuple(self.position.columns) if self.position else ()

    @property
    def position(self) -> CommitPosition | None:
        """The position that the version stands for; None without a version."""
        return find_position(self.version)

    @cached_property
    def field_names(self) -> Mapping[str, str]:
        """The name of the field of the source's row that each column takes, by column."""
        return {each.column.name: str(each.own_member) for each in self.fields}


def _check_fields(fields: Sequence[Field]) -> None:
    """Raise ConfigurationError for a column that takes anything but a field of the row, and for a field taken twice."""
    taken: dict[str, str] = {}
    for each in fields:
        name = each.own_member
        if name is None:
            raise ConfigurationError(
                f'column {each.column.name!r}: Debezium takes fields of the row, such as "is_deleted boolean from '
                f"'deleted'\", but neither a path nor a default, found "
                f"{'default' if each.default is not None else f'from {str(each.path)!r}'}. "
                f"Take the whole field, as jsonb if it is a document."
            )
        if name in taken:
            raise ConfigurationError(
                f"columns {taken[name]!r} and {each.column.name!r}: both take the field {name!r}. Remove one."
            )
        taken[name] = each.column.name
    check_member_names(fields)


@dataclass(frozen=True)
class Flattened(Debezium):
    """Values are change events of Debezium that its transformation ExtractNewRecordState has flattened: rows, as JSON
    with or without their schema, or as Avro with a registry.

    schema       the columns of the row, as for Debezium; also fields that add.fields adds, such as
                 `"op text from '__op'"`
    unavailable, binary, epoch, times, decimals, registry   as for Debezium

    The field `__deleted` says whether an event is a delete. A null value deletes the row of its key, which the
    pipeline's `message_key` decodes: `message_key=Flattened("id int")`. So does JSON's null, which Connect's JSON
    converter writes in the mode tombstone. A value that the source left out is taken for that of an update if `__op`
    says so or, without `__op`, if the event has `__deleted`, which shows that deletes arrive.

    The transformation drops truncates, and there is no version: the offset orders the changes of a key, which
    connectors write to one partition.

    Raises ConfigurationError for a column that takes `__deleted`, and what Debezium raises.
    """

    tombstone_deletes: ClassVar[bool] = True

    version: None = field(default=None, init=False, repr=False)
    source: tuple[()] = field(default=(), init=False, repr=False)
    truncate: Literal["reject"] = field(default="reject", init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, own in self.field_names.items():
            if own == DELETED:
                raise ConfigurationError(
                    f"column {name!r}: Flattened makes deletes of the field {DELETED!r}, and no column. For a column "
                    f"that says what happened, add op to the connector's add.fields: \"{name} text from '__op'\"."
                )

    @property
    def unordered_columns(self) -> frozenset[str]:
        """The columns of fields that add.fields adds, such as `__lsn` and `__ts_ms`."""
        return frozenset(name for name, own in self.field_names.items() if own.startswith(_ADDED))
