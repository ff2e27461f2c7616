"""The sinks that a user declares, and the facts that follow from them. Nothing here runs a statement.

A sink is a frozen dataclass of options: Append, Upsert and Aggregate. The writer that stores its rows is built from its
traits by writers.py.

Tables. Every target has one table whose rows carry lineage, the *lineage table*: which record, or at least which batch,
a row comes from. A replay retracts by lineage, and an audit compares by lineage. Unless the target is derived, it is
its own lineage table. A derived target is computed from its lineage table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol, Self, runtime_checkable

from exactbatch.columns import LINEAGE, POSITION_EPOCH, UNAVAILABLE_COLUMNS, Column, renamed
from exactbatch.errors import ConfigurationError
from exactbatch.offsets import TopicPartition

# The origin that a row names: one record, or only the batch.
Lineage = Literal["record", "batch"]

# The columns of a staged change, after the pipeline's columns.
DELETED: Final = Column("deleted", "boolean")
UNAVAILABLE: Final = Column(UNAVAILABLE_COLUMNS, "text[]")
# How many times the positions of the source had begun again when a change was made; null before the first time.
EPOCH: Final = Column(POSITION_EPOCH, "integer")


@dataclass(frozen=True, slots=True)
class SinkIdentity:
    """The part of a sink that the ledger registers: rows written under another identity follow other rules.

    `key` names the columns that identify a row of the target, or the meaning of its columns. `version` is "" if the
    sink has none. `others` are those of further targets that the sink writes in the same transaction. `routes` says
    which rows go to which target, as (target, column, whether it takes the rest, *values); () if each target has all.
    """

    target: str
    sink: str
    key: tuple[str, ...]
    version: str
    lineage: Lineage
    others: "tuple[SinkIdentity, ...]" = ()
    routes: "tuple[tuple[str | bool, ...], ...]" = ()


@dataclass(frozen=True, slots=True)
class SinkKind:
    """A kind of sink, by the name under which the ledger registers it.

    `companions` are the suffixes of the target's name that may name its other tables, whether or not each exists; the
    first suffix of a derived target names its lineage table. With `keeps_every_row`, the lineage table keeps the rows
    of every record until they are retracted or compacted; otherwise only those of the latest record of each key. Then
    nothing can be retracted, and the staged rows of a replay replace the rows of its ranges.
    """

    name: str
    companions: tuple[str, ...] = ()
    is_derived: bool = False
    keeps_every_row: bool = True


APPEND: Final = SinkKind("append")
UPSERT: Final = SinkKind("upsert", ("_change",), is_derived=True)
UPSERT_LATEST: Final = SinkKind("upsert_latest", ("_deleted",), keeps_every_row=False)
AGGREGATE: Final = SinkKind("aggregate", ("_partial", "_watermark"), is_derived=True)
# The kinds by their names. The ledger registers several targets of a pipeline each by its own kind.
KINDS: Final[Mapping[str, SinkKind]] = {
    kind.name: kind for kind in (APPEND, UPSERT, UPSERT_LATEST, AGGREGATE)
}


@dataclass(frozen=True, slots=True)
class FormatFacts:
    """What the format of a pipeline says about the rows that a sink gets.

    has_unavailable_values  True if a row may have unavailable values, which the source did not send
    position_columns   the columns that have the position of each change's commit, in their order; () if none have
    truncate_order     the columns that order truncates of the source among changes; None if the format has no truncates
    """

    has_unavailable_values: bool = False
    position_columns: tuple[str, ...] = ()
    truncate_order: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """The rows of a pipeline that go to one of the targets of a Route, and the columns that the target has.

    by         the column of type text whose value says where a row goes
    values     the values of rows that go to this target
    elsewhere  the values of rows that go to others
    takes_rest    True if rows with any other value, and with null, go to this target
    has_rest   True if there is a target for them
    columns    the names of the columns of this target; () for all columns of the pipeline
    """

    by: str
    values: tuple[str, ...]
    elsewhere: tuple[str, ...]
    takes_rest: bool
    has_rest: bool
    columns: tuple[str, ...]

    def goes_elsewhere(self, value: str | None) -> bool:
        """True if a row with this value goes to another target; one that goes to none is a reject."""
        if value in self.elsewhere:
            return True
        return self.has_rest and not self.takes_rest and value not in self.values

    def check(self, target: str, columns: Sequence[Column]) -> None:
        """Raise ConfigurationError if a pipeline with these columns lacks what the route names."""
        types = {column.name: column.type for column in columns}
        if types.get(self.by) != "text":
            raise ConfigurationError(
                f"expected Route(by=…) to name a column of the pipeline of type text, found {self.by!r}, "
                f"{types.get(self.by, 'which is not one of ' + ', '.join(types))}"
            )
        if unknown := [name for name in self.columns if name not in types]:
            raise ConfigurationError(
                f"expected the columns of {target} among the pipeline's columns, {', '.join(types)}, found "
                f"{unknown[0]!r}"
            )


@dataclass(frozen=True, kw_only=True)
class SinkTraits:
    """What a pipeline's sink asks of those who plan, stage, replay and audit its batches.

    sink              what the user wrote; of several sinks the last one, which decides
    target            the target as the user wrote it; of several, all of them, for messages
    lineage           the origin that a row of the lineage table names: one record, or only the batch
    needs_lineage     True if each staged row must name the record that it comes from
    key_columns       the columns whose values identify a row of the target; () if there are none
    version_columns   the columns of the version, which order the changes of a key; () if their offsets do
    position_columns  the same, if they are the position of each change's commit; otherwise ()
    keeps_deletes     True if a staged row may be a delete: it has the column `deleted`, and null values are no
                      tombstones
    keeps_unavailable   True if a staged row may have unavailable values; it lists their columns
    applies_truncates  True if a staged row may be a truncate
    epochs            the offsets at which the positions of the source begin again, each time; 0 in other partitions
    needs_last_records_only  True if only the last record of each message key matters, so that a compacted topic can be
                      replayed
    values_follow_from_records  True if an audit can compute the rows of the lineage table from the records alone
    not_copyable      why executors cannot copy ranges into the target independently of each other; None if they can
    route             which rows and columns the target gets; None for all of them
    targets           the traits of each target if the same transaction writes several; the last one decides
    """

    sink: "Sink"
    target: str
    lineage: Lineage = "record"
    needs_lineage: bool = True
    key_columns: tuple[str, ...] = ()
    version_columns: tuple[str, ...] = ()
    position_columns: tuple[str, ...] = ()
    keeps_deletes: bool = False
    keeps_unavailable: bool = False
    applies_truncates: bool = False
    epochs: Sequence[Mapping[TopicPartition, int]] = ()
    needs_last_records_only: bool = False
    values_follow_from_records: bool = True
    not_copyable: str | None = None
    route: Routed | None = None
    targets: "tuple[SinkTraits, ...]" = ()

    @property
    def is_derived(self) -> bool:
        """True if the target is computed from the lineage table, which all pipelines with this target share."""
        return self.sink.kind.is_derived

    @property
    def keeps_every_row(self) -> bool:
        """See SinkKind."""
        return self.sink.kind.keeps_every_row

    @property
    def identity(self) -> SinkIdentity:
        """The part of the sink that the ledger registers."""
        return replace(
            self.sink.identity,
            others=tuple(other.sink.identity for other in self.parts[:-1]),
            routes=tuple(
                (part.target, part.route.by, part.route.takes_rest, *sorted(part.route.values))
                for part in self.parts
                if part.route is not None
            ),
        )

    @property
    def parts(self) -> "tuple[SinkTraits, ...]":
        """The traits of each target. The one that decides is the last."""
        return self.targets or (self,)

    @property
    def is_routed(self) -> bool:
        """True if each row goes to one of several targets, and not to all of them."""
        return any(part.route is not None for part in self.parts)

    @property
    def epoch(self) -> tuple[Column, ...]:
        """The column of the epoch, once positions have begun again."""
        return (EPOCH,) if self.epochs else ()

    @property
    def ordering_columns(self) -> tuple[str, ...]:
        """The columns that order the changes of a key, including the epoch; () if their offsets do."""
        return (*(column.name for column in self.epoch), *self.version_columns)

    def with_epochs(self, epochs: Sequence[Mapping[TopicPartition, int]]) -> Self:
        """Return the traits where positions begin again at these offsets, once for each mapping."""
        return replace(
            self,
            epochs=epochs if self.position_columns else (),
            targets=tuple(target.with_epochs(epochs) for target in self.targets),
        )

    @property
    def _marks(self) -> tuple[Column, ...]:
        """The columns that a staged row has besides those of the pipeline."""
        unavailable = (UNAVAILABLE,) if self.keeps_unavailable else ()
        return (*((DELETED,) if self.keeps_deletes else ()), *unavailable, *self.epoch)

    def own_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return those of a pipeline's columns that the target has."""
        if self.route is None or not self.route.columns:
            return tuple(columns)
        own = {*self.route.columns, *(mark.name for mark in self._marks)}
        return tuple(column for column in columns if column.name in own)

    def staged_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the columns of a staged row, without its lineage, for the columns of a pipeline; of those that go to
        the target."""
        return (*self.own_columns(columns), *self._marks)

    def result_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the columns of a row of the target that are its result, for a pipeline with these columns."""
        return self.sink.result_columns(self.own_columns(columns))

    @property
    def lineage_of_results(self) -> tuple[Column, ...]:
        """The columns of lineage that a row of the target has besides its result; () for a derived target."""
        if self.is_derived:
            return ()
        return LINEAGE if self.lineage == "record" else LINEAGE[-1:]

    def check(self, columns: Sequence[Column]) -> None:
        """Raise ConfigurationError if the targets cannot store rows with these columns."""
        for part in self.parts:
            if part.route is not None:
                part.route.check(part.target, columns)
            part.sink.check(part.own_columns(columns), part)


@runtime_checkable
class Sink(Protocol):
    """The options of one target."""

    @property
    def kind(self) -> SinkKind:
        """The kind of the sink."""
        ...

    @property
    def target(self) -> str:
        """The target as the user writes it: `schema.table`."""
        ...

    @property
    def identity(self) -> SinkIdentity:
        """The part of the sink that the ledger registers."""
        ...

    def find_traits(self, facts: FormatFacts) -> SinkTraits:
        """Return what the sink asks of a pipeline.

        Raises ConfigurationError if it cannot take what the format gives.
        """
        ...

    def check(self, columns: Sequence[Column], traits: SinkTraits) -> None:
        """Raise ConfigurationError if the sink cannot store rows with these columns."""
        ...

    def result_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the columns of a row of the target that are its result, for a pipeline with these columns."""
        ...


def check_lineage_names(target: str, columns: Sequence[Column]) -> None:
    """Raise ConfigurationError if a column of the pipeline has a name that staging or lineage uses."""
    lineage = {column.name for column in LINEAGE}  # all of it: the staging table always has it
    if taken := {"task_attempt", *lineage} & {column.name for column in columns}:
        raise ConfigurationError(
            f"target {target}: the pipeline's columns {', '.join(sorted(taken))} have names that "
            f"lineage and staging use. {renamed(min(taken))}"
        )


def refuse_truncates(sink: str, facts: FormatFacts) -> None:
    """Raise ConfigurationError for a format with truncates: the sink has no rows that a truncate could delete."""
    if facts.truncate_order is not None:
        raise ConfigurationError(
            f"{sink}: only an Upsert applies truncates. Leave out truncate='apply': a truncate is a reject then."
        )
