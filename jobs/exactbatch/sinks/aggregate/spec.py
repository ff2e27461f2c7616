"""Aggregate: counts, sums, least and greatest values by key and window, exact also after a replay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from exactbatch.columns import LINEAGE, Column
from exactbatch.errors import ConfigurationError
from exactbatch.options import check_types, list_values, names_options
from exactbatch.sinks.aggregate.functions import AggregateFunction
from exactbatch.sinks.aggregate.window import TIMESTAMPTZ, Window
from exactbatch.sinks.sink import (
    AGGREGATE,
    FormatFacts,
    SinkIdentity,
    SinkKind,
    SinkTraits,
    check_lineage_names,
    refuse_truncates,
)
from exactbatch.sinks.table_name import TableName
from exactbatch.time_text import Duration, parse_duration

# The columns of a partial result and of a row of the target besides the results.
RECORDS: Final = Column("records", "bigint")
FINAL: Final = Column("final", "boolean")
REVISIONS: Final = Column("revisions", "bigint")
PARTIAL, WATERMARK = AGGREGATE.companions
_RESERVED: Final = {RECORDS.name, FINAL.name, REVISIONS.name, *(column.name for column in LINEAGE)}
_KAFKA_TIMESTAMP: Final = next(column for column in LINEAGE if column.name == "kafka_timestamp")


@names_options
@dataclass(frozen=True)
class Aggregate:
    """Keep in `target` one row for each key and window, with aggregates over all of their rows.

    group_by          columns and at most one Window; null is a value like any other
    aggregates        the columns of the result: {"flights": Count(), "worst": Max("dep_delay")}
    allowed_lateness  how long after its end a window becomes final, as "2 hours" or a timedelta: as soon as each
                      partition has given an event that is at least that much later than the end; None: never
    on_late           what happens to rows of a final window: "update" applies them and counts the change in the
                      window's `revisions`, "reject" makes them rejects

    The results of each batch are kept separately, in `<target>_partial`, and added to the rows of its keys and windows
    in the transaction of the batch. A replay retracts partial results and merges the others again, so it is exact, also
    for a greatest value or for a window that should not exist. It processes whole batches again.

    """

    target: str
    group_by: str | Window | tuple[str | Window, ...]
    aggregates: Mapping[str, AggregateFunction]
    allowed_lateness: Duration | None = None
    on_late: Literal["update", "reject"] = "update"

    def __post_init__(self) -> None:
        check_types(self)
        name = TableName(self.target)
        name.check_length()
        _ = name.sibling(PARTIAL), self.window and name.sibling(WATERMARK)
        if not self.groups:
            raise ConfigurationError(
                f"expected group_by of {self.target} as columns and at most one Window, "
                f'group_by=("carrier", Window("time", "1 hour")), found {self.group_by!r}'
            )
        if len([group for group in self.groups if isinstance(group, Window)]) > 1:
            raise ConfigurationError(
                f"expected at most one Window for {self.target}, found {self.group_by!r}"
            )
        if not self.aggregates:
            raise ConfigurationError(
                f'expected aggregates of {self.target} as {{"flights": Count(), "worst": Max("dep_delay")}}, '
                f"found {self.aggregates!r}"
            )
        columns = [*self.group_columns, *self.aggregates]
        if repeated := sorted({each for each in columns if columns.count(each) > 1 or each in _RESERVED}):
            raise ConfigurationError(
                f"target {self.target}: the columns {', '.join(map(repr, repeated))} occur twice or have "
                f"reserved names. Give the aggregate or the window another name. Reserved are "
                f"{', '.join(sorted(_RESERVED))}."
            )
        if self.on_late == "reject" and self.allowed_lateness is None:
            raise ConfigurationError(
                f"target {self.target}: on_late='reject' needs allowed_lateness, which says when rows are late"
            )
        if self.allowed_lateness is not None and self.wait is None:
            raise ConfigurationError(
                f"target {self.target}: allowed_lateness needs a Window in group_by, and there is none"
            )

    @property
    def kind(self) -> SinkKind:
        """The kind of the sink."""
        return AGGREGATE

    @property
    def identity(self) -> SinkIdentity:
        """The part of the sink that the ledger registers; `key` describes groups and aggregates."""
        groups = (
            f"{group.start.name} = {group.column} by {group.rule}" if isinstance(group, Window) else group
            for group in self.groups
        )
        functions = (f"{name} = {function}" for name, function in self.aggregates.items())
        return SinkIdentity(
            self.target, self.kind.name, key=(*groups, *functions), version="", lineage="batch"
        )

    @property
    def groups(self) -> tuple[str | Window, ...]:
        """The columns and the Window of `group_by`."""
        return list_values(self.group_by)

    @property
    def window(self) -> Window | None:
        """The Window of `group_by`."""
        return next((group for group in self.groups if isinstance(group, Window)), None)

    @property
    def wait(self) -> timedelta | None:
        """How long after its end a window becomes final; None if windows never do."""
        if self.allowed_lateness is None or self.window is None:
            return None
        return parse_duration(self.allowed_lateness, what=f"allowed_lateness of {self.target}")

    @property
    def group_columns(self) -> tuple[str, ...]:
        """The columns that name the group of a row."""
        return tuple(group.start.name if isinstance(group, Window) else group for group in self.groups)

    def find_traits(self, facts: FormatFacts) -> SinkTraits:
        """Return what the sink asks of a pipeline. Raises ConfigurationError for a format with truncates."""
        refuse_truncates(type(self).__name__, facts)
        return SinkTraits(
            sink=self,
            target=self.target,
            lineage="batch",
            key_columns=self.group_columns,
            not_copyable="a sink whose target is derived from all ranges (aggregate)",
        )

    def check(self, columns: Sequence[Column], traits: SinkTraits) -> None:  # noqa: ARG002
        """Raise ConfigurationError if a column to group by or to aggregate is not one of the pipeline's."""
        check_lineage_names(self.target, columns)
        values = staged_values(columns)
        for group in self.groups:
            name = group.column if isinstance(group, Window) else group
            if name not in values:
                raise ConfigurationError(
                    f"expected {self.target} to group by the pipeline's columns, {', '.join(values)}, "
                    f"found {name!r}"
                )
            if isinstance(group, Window) and values[name].type != TIMESTAMPTZ:
                raise ConfigurationError(
                    f"window of {name!r}: expected a column of type timestamptz, found {values[name].type}"
                )
            if (values[name].element or values[name].type) == "json":
                raise ConfigurationError(
                    f"expected {self.target} to group by columns whose values can be compared, found {name!r} "
                    f"of type {values[name].type}: make it jsonb"
                )
        for function in self.aggregates.values():
            function.find_type(values)

    def aggregated_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the columns of a result: the columns of its group, and the aggregates."""
        values = staged_values(columns)
        return (
            *(group.start if isinstance(group, Window) else values[group] for group in self.groups),
            *(Column(name, function.find_type(values)) for name, function in self.aggregates.items()),
        )

    def result_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the columns of a group, its aggregates, and with allowed_lateness the columns of its finality."""
        return (*self.aggregated_columns(columns), *self.finality_columns)

    @property
    def finality_columns(self) -> tuple[Column, ...]:
        """The columns that say whether a window is final; () if windows never are."""
        return () if self.wait is None else (FINAL, REVISIONS)


def staged_values(columns: Sequence[Column]) -> dict[str, Column]:
    """Return the columns of a staged row that it can be grouped by, and that can be aggregated, by name."""
    return {column.name: column for column in (*columns, _KAFKA_TIMESTAMP)}
