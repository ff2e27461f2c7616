"""The defaults of sinks: no keys, no deletes, no derived target, no compaction."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Self

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError, TargetMismatch
from exactbatch.offsets import OffsetRange, TopicPartition
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.base import Compactor, Comparison, KeptLatest, Merger, PartitionStaging
from exactbatch.sinks.staged_rows import CheckedJson, StagedRows
from exactbatch.sinks.tables.lineage_table import LineageTable, Part
from exactbatch.sinks.tables.target import TargetTable

_ONE_ROW_EACH: Final = sql.SQL("count(*)")


class SinkDefaults:
    """The parts of Sink that most sinks have in common. A sink gives its tables, and overrides what differs."""

    companion_suffixes: ClassVar[tuple[str, ...]] = ()
    is_derived: ClassVar[bool] = False
    keeps_deletes: ClassVar[bool] = False
    keeps_every_row: ClassVar[bool] = True
    keeps_unchanged: bool = False
    position_columns: tuple[str, ...] = ()
    epochs: Sequence[Mapping[TopicPartition, int]] = ()

    @property
    def _target(self) -> TargetTable:
        raise NotImplementedError

    @property
    def lineage_table(self) -> LineageTable:
        """The table whose rows carry lineage."""
        raise NotImplementedError

    @property
    def table(self) -> sql.Composable:
        """The target as an SQL identifier."""
        return self._target.identifier

    @property
    def tables(self) -> tuple[TargetTable, ...]:
        """The target alone."""
        return (self._target,)

    @property
    def parts(self) -> tuple[Any, ...]:
        """The sink itself: it has one target."""
        return (self,)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """None: rows have no key."""
        return ()

    @property
    def needs_last_records_only(self) -> bool:
        """False: every record counts."""
        return False

    @property
    def inserts_in_parts(self) -> bool:
        """False: insert_staged() sees all rows of a batch at once."""
        return False

    @property
    def compactor(self) -> Compactor | None:
        """None: every row of the lineage table is part of the result."""
        return None

    @property
    def merger(self) -> Merger | None:
        """None: the sink makes no partitions."""
        return None

    @property
    def event_times(self) -> TargetTable | None:
        """None: the sink keeps no event times."""
        return None

    @property
    def staged_row_count(self) -> sql.Composable:
        """One staged row for each row of the lineage table."""
        return _ONE_ROW_EACH

    def result_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the pipeline's columns unchanged."""
        return tuple(columns)

    def keeping_unchanged(self) -> Self:
        """Return the sink itself: it takes only rows that have all values."""
        return self

    def with_positions(self, columns: Sequence[str]) -> Self:  # noqa: ARG002
        """Return the sink itself: nothing orders its rows."""
        return self

    def with_epochs(self, epochs: Sequence[Mapping[TopicPartition, int]]) -> Self:  # noqa: ARG002
        """Return the sink itself: nothing orders its rows."""
        return self

    def applying_truncates(self, order: Sequence[str]) -> Self:  # noqa: ARG002
        """Raise ConfigurationError: the sink has no rows that a truncate could delete."""
        raise ConfigurationError(
            f"{type(self).__name__}: only an Upsert applies truncates. Leave out truncate='apply': a truncate is a "
            f"reject then."
        )

    def find_unknown(
        self,
        cursor: Cursor,  # noqa: ARG002
        staged: StagedRows,  # noqa: ARG002
        columns: Sequence[Column],  # noqa: ARG002
        *,
        without: sql.Composable,  # noqa: ARG002
    ) -> sql.Composable | None:
        """Return None: staged rows have all values."""
        return None

    def staged_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the pipeline's columns unchanged."""
        return tuple(columns)

    def check_shared(self, cursor: Cursor, columns: Sequence[Column], pipelines: Sequence[str]) -> None:
        """Do nothing: a column that only others write does not matter."""

    def check_replay(self, cursor: Cursor) -> None:
        """Raise TargetMismatch if a replay would change tables that refer to the lineage table."""
        self.lineage_table.check_replay(cursor)

    def check_copyable(self, cursor: Cursor, columns: Sequence[Column]) -> None:  # noqa: ARG002
        """Raise TargetMismatch: the sink does not take copied ranges."""
        raise TargetMismatch(
            f"target {self._target.spec}: {type(self).__name__} does not take ranges that commit='partition' "
            f"copies. Nothing was written. Use commit='batch'."
        )

    def forget_topics(self, cursor: Cursor, topics: Sequence[str]) -> None:
        """Do nothing: the sink stores nothing about a topic besides its rows."""

    def partition_staging(
        self,
        cursor: Cursor,  # noqa: ARG002
        columns: Sequence[Column],  # noqa: ARG002
        *,
        batch_id: int,  # noqa: ARG002
        offsets: int,  # noqa: ARG002
    ) -> PartitionStaging | None:
        """Return None: rows are staged and inserted."""
        return None

    def checked_json(
        self,
        cursor: Cursor,  # noqa: ARG002
        columns: Sequence[Column],  # noqa: ARG002
    ) -> tuple[CheckedJson, ...]:
        """Return none: insert_staged() reads the text of documents."""
        return ()

    @property
    def drops_batches(self) -> bool:
        """False: retract() removes all rows."""
        return False

    def drop_batches(self, cursor: Cursor, batch_ids: Sequence[int]) -> None:
        """Do nothing: retract() removes all rows."""

    def check_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> None:
        """Do nothing: a record may give any rows."""

    def count_retracted(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Return how many staged rows retract() would delete."""
        return self.lineage_table.aggregate(cursor, parts, self.staged_row_count)

    def count_retracted_by_part(self, cursor: Cursor, parts: Sequence[Part]) -> list[int | None]:
        """Return how many rows retract() would delete of each part; None if rows do not name their records."""
        return self.lineage_table.count_by_part(cursor, parts)

    def batches_in(self, cursor: Cursor, ranges: Sequence[OffsetRange]) -> list[set[int]]:
        """Return the IDs of the batches that have rows in each range of the lineage table."""
        return self.lineage_table.batches_in(cursor, ranges)

    def compare_target(
        self,
        columns: Sequence[Column] | None,  # noqa: ARG002
        target_types: Mapping[str, str],  # noqa: ARG002
        lineage_types: Mapping[str, str],  # noqa: ARG002
    ) -> Comparison | None:
        """Return None: the target is the lineage table."""
        return None

    @property
    def kept_latest(self) -> KeptLatest | None:
        """None: every row is kept."""
        return None

    def compare_batches(
        self,
        records: sql.Composable,  # noqa: ARG002
        batch: sql.Composable,  # noqa: ARG002
        columns: Sequence[Column],  # noqa: ARG002
        lineage_types: Mapping[str, str],  # noqa: ARG002
        batch_ids: sql.Composable,  # noqa: ARG002
    ) -> Comparison | None:
        """Return None: an audit compares record by record, or only counts."""
        return None
