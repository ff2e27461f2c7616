"""What a pipeline is registered as, and which pipelines may write to the same tables."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from exactbatch.errors import ConfigurationError, IdentityChanged
from exactbatch.pipeline import Pipeline
from exactbatch.sinks import Upsert
from exactbatch.sinks.target import TargetTable

# What the names of the tables beside a target end in. An Aggregate without a window has no watermark.
_BESIDE: Final = {"append": (), "upsert": ("_change",), "aggregate": ("_partial", "_watermark")}
_IDENTITY: Final = ("target", "sink", "key", "version", "lineage")
# Rows of the same target follow the same rules when these are equal.
_RULES: Final = ("sink", "key", "version")


@dataclass(frozen=True, slots=True)
class Definition:
    """A row of exactbatch.pipeline. `version` is None where it was registered before that was kept."""

    name: str
    target: str
    sink: str
    key: list[str]
    lineage: str
    version: str | None

    @property
    def table(self) -> tuple[str, str]:
        """Schema and table of the target, as Postgres stores them."""
        return TargetTable(self.target).name

    @property
    def tables(self) -> frozenset[tuple[str, str]]:
        """The target and the tables beside it, as (schema, table)."""
        schema, table = self.table
        return frozenset((schema, table + suffix) for suffix in ("", *_BESIDE[self.sink]))


def definition_of(pipeline: Pipeline) -> Definition:
    """What a pipeline would be registered as."""
    sink = pipeline.sink
    return Definition(
        name=pipeline.name,
        target=sink.target,
        sink=sink.kind,
        key=list(sink.key),
        lineage=sink.lineage,
        version=(sink.version or "") if isinstance(sink, Upsert) else "",
    )


def check_identity(own: Definition, registered: Definition) -> None:
    """Raise IdentityChanged unless a pipeline is what it is registered as, as far as that is known."""
    for name in _IDENTITY:
        found, value = getattr(registered, name), getattr(own, name)
        if found is not None and found != value:
            raise IdentityChanged(
                f"pipeline {own.name!r}: expected {name} {found!r}, as registered, found {value!r}. What "
                f"was committed so far is accounted for under the old {name}: register the pipeline under a "
                f"new name with a new target, or move its results and run `exactbatch init --accept-identity`."
            )


def sharing(own: Definition, others: Iterable[Definition]) -> list[Definition]:
    """Those of the other pipelines that write to any of this one's tables."""
    return [other for other in others if own.tables & other.tables]


def check_sharing(own: Definition, others: Iterable[Definition]) -> None:
    """Raise ConfigurationError when another pipeline writes to the same tables by other rules."""
    for other in sharing(own, others):
        if (difference := _difference(own, other)) is not None:
            schema, table = min(own.tables & other.tables)
            raise ConfigurationError(
                f"pipelines {own.name!r} and {other.name!r} both write to the table {schema}.{table}, and their "
                f"{difference} differs: {own.name!r} has {getattr(own, difference)!r}, {other.name!r} is "
                f"registered with {getattr(other, difference)!r}. Neither runs, because the values of both would "
                f"mix. Give one of them another target, or both the same {difference}, and run `exactbatch init "
                f"--accept-identity` for each that changed."
            )


def _difference(own: Definition, other: Definition) -> str | None:
    """What keeps two pipelines from sharing a table; an unknown version does not."""
    if own.table != other.table:
        return "target"
    for name in _RULES:
        here, there = getattr(own, name), getattr(other, name)
        if None not in (here, there) and here != there:
            return name
    return None
