"""The staged rows of a batch, as publish hands them to a sink."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from psycopg2 import sql

from exactbatch.offsets import OffsetRange
from exactbatch.sinks.values.cast import Cast

# A range, and the IDs of the batches whose results stand for some of its offsets.
Part = tuple[OffsetRange, Sequence[int]]


@dataclass(frozen=True, slots=True)
class CheckedJson:
    """A second staged column for a column of type jsonb: the documents that compiled code has checked, as jsonb.

    column      the column, which is staged as text; it is null where this one has a document
    name        this column
    definition  its type, and how Postgres stores it: as in the target, which takes the stored form as it is
    """

    column: str
    name: str
    definition: str


class Place(NamedTuple):
    """The place of a record in the log."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows of a staging table that task attempts of a batch have written and Spark has accepted.

    table     the staging table as an SQL identifier; its rows have the columns that the sink stages, the lineage
              of the record (kafka_topic, kafka_partition, kafka_offset, kafka_timestamp), and task_attempt
    rows      how many rows each accepted task attempt has staged; rows of others do not count
    checked   the second columns of the columns of JSON
    repeats   records that are known to repeat the change of an earlier record of their partition
    replaced  what a replay replaces: each of its ranges with the batches that have written for it; () for an advance
    """

    table: sql.Composable
    batch_id: int
    rows: Mapping[int, int]
    checked: tuple[CheckedJson, ...] = ()
    repeats: frozenset[Place] = frozenset()
    replaced: Sequence[Part] = ()

    @property
    def accepted(self) -> sql.Composable:
        """The condition of the rows that count."""
        # A literal rather than a parameter: psycopg2 would look for parameters in a name with a % as well.
        return sql.SQL("task_attempt = any({})").format(sql.Literal(list(self.rows)))

    @property
    def count(self) -> int:
        """How many rows count."""
        return sum(self.rows.values())

    def value(self, cast: Cast) -> sql.Composable:
        """The staged value of a column as a value of the target."""
        for checked in self.checked:
            if checked.column == cast.column.name:
                return sql.SQL("coalesce({}, {})").format(sql.Identifier(checked.name), cast.expression)
        return cast.expression
