"""The registration of a pipeline, and the rules by which pipelines may write to the same tables."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Final

from exactbatch.errors import ConfigurationError, IdentityChanged
from exactbatch.pipeline import Pipeline
from exactbatch.sinks.sink import KINDS
from exactbatch.sinks.table_name import TableName
from exactbatch.topic_pattern import TopicPattern, known_topics, loads

_IDENTITY: Final = ("target", "sink", "key", "version", "lineage", "other_targets")
# Pipelines whose values of these are equal write the rows of a target by the same rules.
_RULES: Final = ("sink", "key", "version")


@dataclass(frozen=True, slots=True)
class Definition:
    """A row of exactbatch.pipeline.

    `version` is None and `topics` is empty if the pipeline was registered before the ledger had these columns. With a
    `topic_pattern`, a regular expression, `topics` is empty, too: the topics that have joined have stored offsets.
    With `shares_topics`, it may load topics that another pipeline loads into the same target. `freshness` is not part
    of its identity. `other_targets` are those that each batch writes in the same transaction, as JSON, or "": each is
    [target, sink, key, version], and with a Route a fifth element says which rows go to which target.
    """

    name: str
    target: str
    sink: str
    key: list[str]
    lineage: str
    version: str | None
    topics: list[str]
    shares_topics: bool
    freshness: timedelta | None
    topic_pattern: str | None = None
    other_targets: str = ""

    @property
    def pattern(self) -> TopicPattern | None:
        """The pattern of its topics; None if they are named."""
        return None if self.topic_pattern is None else TopicPattern(self.topic_pattern)

    def loads(self, topic: str) -> bool:
        """True if the pipeline is registered with a topic, by name or by pattern."""
        return loads(self.pattern or self.topics, topic)

    def known_topics(self, stored: Iterable[str]) -> tuple[str, ...]:
        """Return its topics; of those with stored offsets, the ones that match its pattern.

        Ledgers did not always have the topics of a pipeline: then, all with stored offsets.
        """
        if self.pattern is None and not self.topics:
            return tuple(sorted(set(stored)))
        return known_topics(self.pattern or self.topics, stored)

    @property
    def others(self) -> list[str]:
        """The other targets."""
        return [target for target, _ in self.sinks[1:]]

    @property
    def sinks(self) -> list[tuple[str, str]]:
        """Each target with the name of its kind of sink, that of `target` first."""
        others = json.loads(self.other_targets or "[]")
        return [(self.target, self.sink), *((target, sink) for target, sink, *_ in others)]

    @property
    def is_routed(self) -> bool:
        """True if each row goes to one of the targets, and not to all of them."""
        return any(len(other) > 4 for other in json.loads(self.other_targets or "[]"))

    @property
    def table(self) -> tuple[str, str]:
        """Schema and table of the target, as Postgres stores them."""
        return TableName(self.target).name

    @property
    def targets(self) -> list[tuple[str, str]]:
        """Schema and table of each target, that of `table` first."""
        return [self.table, *(TableName(other).name for other in self.others)]

    @property
    def tables(self) -> frozenset[tuple[str, str]]:
        """The targets and their companion tables, as (schema, table)."""
        return _tables(self.name, self.target, self.sink, self.other_targets)


def targets_beside(own: Definition) -> list[str]:
    """Return the names of the tables that are the target of any pipeline with one target and a table of this one.

    Either pipeline's table may be a companion of its target, whose name has a suffix.
    """
    suffixes = {suffix for kind in KINDS.values() for suffix in ("", *kind.companions)}
    return sorted(
        {
            table.removesuffix(suffix)
            for _, table in own.tables
            for suffix in suffixes
            if table.endswith(suffix)
        }
    )


# A check of a pipeline compares its tables with those of others: with many tables in one DAG, names are parsed once.
@lru_cache(maxsize=16_384)
def _tables(name: str, target: str, sink: str, other_targets: str) -> frozenset[tuple[str, str]]:
    others = json.loads(other_targets or "[]")
    found = set()
    for each, of_sink in [(target, sink), *((other, sink_of_other) for other, sink_of_other, *_ in others)]:
        if of_sink not in KINDS:
            raise ConfigurationError(
                f"pipeline {name!r} is registered with the sink {of_sink!r}, which this version of exactbatch does "
                f"not have. It cannot tell which tables the pipeline writes. Use the version of exactbatch that "
                f"registered it."
            )
        schema, table = TableName(each).name
        found |= {(schema, table + suffix) for suffix in ("", *KINDS[of_sink].companions)}
    return frozenset(found)


def build_definition(pipeline: Pipeline, *, shares_topics: bool = False) -> Definition:
    """Return the row that would register a pipeline."""
    identity = pipeline.traits.identity
    return Definition(
        name=pipeline.name,
        target=identity.target,
        sink=identity.sink,
        key=list(identity.key),
        lineage=identity.lineage,
        version=identity.version,
        topics=[] if isinstance(pipeline.topic_names, TopicPattern) else sorted(pipeline.topic_names),
        shares_topics=shares_topics,
        freshness=pipeline.fresh_for,
        other_targets=json.dumps(
            [
                [
                    other.target,
                    other.sink,
                    other.key,
                    other.version,
                    *([identity.routes] if identity.routes else []),
                ]
                for other in identity.others
            ]
        )
        if identity.others
        else "",
        topic_pattern=pipeline.topic_names.regex if isinstance(pipeline.topic_names, TopicPattern) else None,
    )


def check_identity(own: Definition, registered: Definition) -> None:
    """Raise IdentityChanged unless a pipeline matches its registration, as far as that is known."""
    for name in _IDENTITY:
        before, now = getattr(registered, name), getattr(own, name)
        if before is not None and before != now:
            raise IdentityChanged(
                f"pipeline {own.name!r}: expected {name} {_show(name, before)}, as registered, found "
                f"{_show(name, now)}. The results that "
                f"are committed were written with the old {name}. Register the pipeline under a new name with a "
                f"new target, or move its results and run `exactbatch register --accept-identity`."
            )


def _show(name: str, value: object) -> str:
    """Write a part of a definition for a sentence."""
    if name != "other_targets":
        return repr(value)
    shown: list[str] = []
    routes: list[Sequence[str | bool]] = []
    for target, sink, key, version, *routed in json.loads(str(value) or "[]"):
        facts = [
            sink,
            *([f"key ({', '.join(key)})"] if key else []),
            *([f"version {version}"] if version else []),
        ]
        shown.append(f"{target} ({', '.join(facts)})")
        routes = routed[0] if routed else []
    for target, by, takes_rest, *values in routes:
        shown.append(
            f"{by} {', '.join([*map(repr, values), *(['any other'] if takes_rest else [])])} → {target}"
        )
    return "; ".join(shown) or "none"


def sharing(own: Definition, others: Iterable[Definition]) -> list[Definition]:
    """Return the other pipelines that write to any table of this one."""
    tables = own.tables
    return [other for other in others if not tables.isdisjoint(other.tables)]


def check_sharing(own: Definition, others: Iterable[Definition]) -> None:
    """Raise ConfigurationError if another pipeline writes to the same tables by other rules."""
    for other in sharing(own, others):
        if (difference := _difference(own, other)) is not None:
            schema, table = min(own.tables & other.tables)
            of_own, of_other = (_show(difference, getattr(each, difference)) for each in (own, other))
            raise ConfigurationError(
                f"pipelines {own.name!r} and {other.name!r} both write to the table {schema}.{table}, and their "
                f"{difference} differs: {own.name!r} has {of_own}, {other.name!r} is registered with {of_other}. "
                f"Neither runs, because their rows would mix. Give one of them another target, or both the same "
                f"{difference}, and run `exactbatch register --accept-identity` for each pipeline that changed."
            )


def adds_topics(own: Definition, registered: Definition | None) -> bool:
    """True if a pipeline would load topics into its target that it is not registered with."""
    if registered is None or own.table != registered.table or own.topic_pattern != registered.topic_pattern:
        return True
    return bool(registered.topics) and not set(own.topics) <= set(registered.topics)


def check_topics(own: Definition, other: Definition, *, adds: bool) -> None:
    """Raise ConfigurationError if two pipelines load the same topics into the same table without permission.

    A pipeline that `adds` topics needs the permission itself. For two registered pipelines, either has to have it.
    """
    if own.shares_topics or (other.shares_topics and not adds):
        return
    if own.table == other.table and (shared := _shared_topics(own, other)):
        schema, table = own.table
        raise ConfigurationError(
            f"pipelines {other.name!r} and {own.name!r} both load {shared} into the table "
            f"{schema}.{table}: each record would be in the table twice. If {own.name!r} is {other.name!r} under a new "
            f"name, run `exactbatch register` for {own.name!r} with `--rename {other.name}`: it continues "
            f"where {other.name!r} stands. If both are meant to load them, or the topic was deleted and created again, "
            f"run `exactbatch register` for {own.name!r} with `--share-topics`."
        )


def _shared_topics(own: Definition, other: Definition) -> str:
    """Return the topics that both pipelines load or will load, for a sentence; "" if none is known.

    `topics` of both are those that they are registered with or have ever loaded. Whether two different patterns can
    match one topic is not known before one of them has loaded it: then neither runs until one is changed.
    """
    known = {*own.topics, *other.topics}
    if shared := sorted(
        topic
        for topic in known
        if (topic in own.topics or own.loads(topic)) and (topic in other.topics or other.loads(topic))
    ):
        return ", ".join(map(repr, shared))
    return str(own.pattern) if own.pattern is not None and own.pattern == other.pattern else ""


def _difference(own: Definition, other: Definition) -> str | None:
    """Return the property that keeps two pipelines from sharing a table, if any; an unknown version does not."""
    if own.other_targets or other.other_targets:
        # Which rows such a target holds follows from the batches of one pipeline.
        return "other_targets"
    if own.table != other.table:
        return "target"
    for name in _RULES:
        values = getattr(own, name), getattr(other, name)
        if None not in values and values[0] != values[1]:
            return name
    return None
