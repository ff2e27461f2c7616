"""Upsert: the latest state of each key, with or without all of its changes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from exactbatch.columns import Column, renamed
from exactbatch.errors import ConfigurationError
from exactbatch.options import check_types, list_values
from exactbatch.sinks.sink import (
    DELETED,
    EPOCH,
    UNAVAILABLE,
    UPSERT,
    UPSERT_LATEST,
    FormatFacts,
    SinkIdentity,
    SinkKind,
    SinkTraits,
    check_lineage_names,
)
from exactbatch.sinks.table_name import TableName


@dataclass(frozen=True)
class Upsert:
    """Keep in `target` one row for each key, as its latest change has it; no row if that change is a delete.

    All changes are kept, with their lineage, in `<target>_change`. In the transaction of each batch, the rows of
    the keys that it changes are computed from them. So a replay, which retracts changes, is exact, also for a
    delete or for a row under a wrong key. `exactbatch compact` drops old changes.

    The latest change is the one with the greatest `version`: a column, such as a log sequence number or a time, or
    several, such as ("file", "pos"): a later one decides where the earlier ones are equal. Null is less than any
    value. Within a partition, among equal versions or without a version, the change at the greatest offset is the
    latest. Across partitions, equal versions, and changes without one, have no order: the batch ends with an error.

    With history=False only the target is kept, whose rows then carry the lineage of their latest change. A deleted key
    has a marker in `<target>_deleted`, until `exactbatch compact` drops it: an older change that arrives late does not
    bring the row back. A replay applies its records again, and retracts nothing: a row that the records no longer
    produce stays.
    """

    target: str
    key: str | tuple[str, ...]
    version: str | tuple[str, ...] | None = None
    history: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        check_types(self)
        TableName(self.target).check_length()
        if not self.key_columns or len(set(self.key_columns)) < len(self.key_columns):
            raise ConfigurationError(
                f"expected the key of {self.target} as a column or as several different ones, "
                f'key=("order_id", "line"), found {self.key!r}'
            )
        versions = self.version_columns
        if self.version is not None and (not versions or len(set(versions)) < len(versions)):
            raise ConfigurationError(
                f"expected the version of {self.target} as a column or as several different ones, "
                f'version=("file", "pos"), found {self.version!r}'
            )
        if quoted := [name for name in versions if '"' in name]:
            raise ConfigurationError(
                f"target {self.target}: the version {quoted[0]!r} has a double quote in its name. Rename the column."
            )

    @property
    def kind(self) -> SinkKind:
        """The kind of the sink."""
        return UPSERT if self.history else UPSERT_LATEST

    @property
    def identity(self) -> SinkIdentity:
        """The part of the sink that the ledger registers."""
        versions = self.version_columns
        # No name of a version contains a double quote, so that several names cannot be taken for one.
        version = versions[0] if len(versions) == 1 else ", ".join(f'"{name}"' for name in versions)
        return SinkIdentity(self.target, self.kind.name, self.key_columns, version, "record")

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of `key`."""
        return list_values(self.key)

    @property
    def version_columns(self) -> tuple[str, ...]:
        """The columns of `version`; () if offsets alone order the changes of a key."""
        return () if self.version is None else list_values(self.version)

    def find_traits(self, facts: FormatFacts) -> SinkTraits:
        """Return what the sink asks of a pipeline.

        If the version is the position of each change's commit, positions that go back are an error. Raises
        ConfigurationError for a version that has only a part of the position or has it in another order, and for
        truncates that it cannot apply.
        """
        positions, versions = facts.position_columns, self.version_columns
        self._check_positions(positions)
        self._check_truncates(facts.truncate_order)
        return SinkTraits(
            sink=self,
            target=self.target,
            key_columns=self.key_columns,
            version_columns=versions,
            position_columns=positions if versions == positions else (),
            keeps_deletes=True,
            # Without older changes, nothing says what a value was.
            keeps_unavailable=facts.has_unavailable_values and self.history,
            applies_truncates=facts.truncate_order is not None,
            # Without a version the last record of a key decides; otherwise an older one may be greater.
            needs_last_records_only=not versions,
            not_copyable="a sink whose target is derived from all ranges (upsert)",
        )

    def _check_positions(self, positions: tuple[str, ...]) -> None:
        named = self.version_columns
        if {*named} & {*positions} and named[: len(positions)] != positions:
            raise ConfigurationError(
                f"target {self.target}: the version ({', '.join(named)}) is not the position of a change, which is "
                f"({', '.join(positions)}): a part of it does not order the changes of a key. Give the Upsert "
                f"version={positions!r}."
            )

    def _check_truncates(self, order: tuple[str, ...] | None) -> None:
        if order is None:
            return
        # Nothing would keep a truncate for changes that arrive late, or retract it.
        if not self.history:
            raise ConfigurationError(
                f"target {self.target}: truncate='apply' needs the history of the Upsert. Leave out history=False."
            )
        versions = self.version_columns
        if not versions or (others := sorted({*versions} - {*order})):
            found = f"its version has {others[0]!r}" if versions else "it has no version"
            raise ConfigurationError(
                f"target {self.target}: truncate='apply' needs the position of a truncate among the changes, which has "
                f"no message key and may be in any partition, and {found}. Give the format and the Upsert the version "
                f"of the connector, such as Debezium(…, version='postgres') and "
                f"Upsert(…, version=('commit_lsn', 'lsn'))."
            )

    def check(self, columns: Sequence[Column], traits: SinkTraits) -> None:
        """Raise ConfigurationError if key or version is not a column, or a column's name is reserved."""
        names = [column.name for column in columns]
        versions = self.version_columns
        roles = [*(("key", name) for name in self.key_columns), *(("version", name) for name in versions)]
        for role, name in roles:
            if name not in names:
                raise ConfigurationError(
                    f"expected the {role} of {self.target} among the pipeline's columns, {', '.join(names)}, "
                    f"found {name!r}"
                )
        if both := [name for name in versions if name in self.key_columns]:
            raise ConfigurationError(
                f"target {self.target}: {both[0]!r} is a version and part of the key. Choose a version "
                f"that is not part of the key."
            )
        ordered = [*self.key_columns, *versions]
        if plain := [c.name for c in columns if c.name in ordered and (c.element or c.type) == "json"]:
            raise ConfigurationError(
                f"{self.target}: the values of key and version must be comparable, and {', '.join(plain)} "
                f"is json: write jsonb"
            )
        if DELETED.name in names:
            raise ConfigurationError(
                f"target {self.target}: the pipeline has a column {DELETED.name!r}, the name by which an Upsert marks "
                f"deletes. {renamed(DELETED.name)}"
            )
        if traits.position_columns and EPOCH.name in names:
            raise ConfigurationError(
                f"target {self.target}: the pipeline has a column {EPOCH.name!r}, in which an Upsert counts how often "
                f"the positions of the source have begun again. {renamed(EPOCH.name)}"
            )
        if traits.keeps_unavailable and UNAVAILABLE.name in names:
            raise ConfigurationError(
                f"target {self.target}: the pipeline has a column {UNAVAILABLE.name!r}, under which an Upsert "
                f"lists the columns of unavailable values. {renamed(UNAVAILABLE.name)}"
            )
        check_lineage_names(self.target, columns)

    def result_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the pipeline's columns unchanged."""
        return tuple(columns)
