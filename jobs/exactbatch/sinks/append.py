"""Append: every row of a batch is inserted with its lineage."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.options import check_types, list_values, names_options
from exactbatch.sinks.sink import (
    APPEND,
    FormatFacts,
    SinkIdentity,
    SinkKind,
    SinkTraits,
    check_lineage_names,
    refuse_truncates,
)
from exactbatch.sinks.table_name import TableName

_BY_BATCH_IS_WHOLE: Final = (
    "layout='by_batch', where a batch becomes visible as a whole and is written once anyway"
)


@names_options
@dataclass(frozen=True)
class Append:
    """Insert rows into `target`, written `schema.table`; a part that is not lower-case goes in double quotes.

    With lineage="record" each row carries its origin: kafka_topic, kafka_partition, kafka_offset,
    kafka_timestamp, batch_id. With lineage="batch", for rows that come from many records, it carries
    batch_id alone, and a replay processes whole batches again.

    A replay deletes rows and inserts them again. `cascade` names the tables that a foreign key with on delete
    cascade, set null or set default may then change, as in "public.note"; otherwise such a replay is refused.

    With layout="by_batch" the target is partitioned by ranges of batch IDs. A batch of at least
    `min_offsets` offsets becomes a partition: its rows are written once. Smaller ones share partitions.
    """

    target: str
    lineage: Literal["record", "batch"] = "record"
    cascade: str | tuple[str, ...] = ()
    layout: Literal["plain", "by_batch"] = "plain"
    min_offsets: int = 100_000

    def __post_init__(self) -> None:
        check_types(self)
        TableName(self.target).check_length()
        _ = [TableName(table) for table in self.cascaded_tables]
        if self.min_offsets < 0:
            raise ConfigurationError(
                f"target {self.target}: expected min_offsets to be 0 or more, found {self.min_offsets}"
            )

    @property
    def kind(self) -> SinkKind:
        """The kind of the sink."""
        return APPEND

    @property
    def identity(self) -> SinkIdentity:
        """The part of the sink that the ledger registers."""
        return SinkIdentity(self.target, self.kind.name, key=(), version="", lineage=self.lineage)

    @property
    def cascaded_tables(self) -> tuple[str, ...]:
        """The tables of `cascade`."""
        return list_values(self.cascade)

    def find_traits(self, facts: FormatFacts) -> SinkTraits:
        """Return what the sink asks of a pipeline. Raises ConfigurationError for a format with truncates."""
        refuse_truncates(type(self).__name__, facts)
        return SinkTraits(
            sink=self,
            target=self.target,
            lineage=self.lineage,
            needs_lineage=self.lineage == "record",
            # Rows with lineage="batch" do not say which records they are of.
            values_follow_from_records=self.lineage == "record",
            not_copyable=self._not_copyable,
        )

    @property
    def _not_copyable(self) -> str | None:
        if self.lineage == "batch":
            return f"rows that come from many records (lineage={self.lineage!r})"
        return _BY_BATCH_IS_WHOLE if self.layout == "by_batch" else None

    def check(self, columns: Sequence[Column], traits: SinkTraits) -> None:  # noqa: ARG002
        """Raise ConfigurationError if a column of the pipeline has a name that staging or lineage uses."""
        check_lineage_names(self.target, columns)

    def result_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the pipeline's columns unchanged."""
        return tuple(columns)
