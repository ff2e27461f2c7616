"""Register pipelines, check that a pipeline still is what it was registered as, and begin epochs of positions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import psycopg2

from exactbatch.errors import ConfigurationError, NotRegistered
from exactbatch.ledger.definition import (
    Definition,
    adds_topics,
    build_definition,
    check_identity,
    check_sharing,
    check_topics,
    sharing,
    targets_beside,
)
from exactbatch.ledger.statements import Store, load_queries, read_row, read_rows
from exactbatch.ledger.streams import Streams
from exactbatch.offsets import TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection
from exactbatch.sinks.sink import KINDS

_QUERIES: Final = load_queries("registry")


class Registry(Store):
    """The rows of exactbatch.pipeline and position_epoch."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._streams = Streams(connection)

    def register(
        self,
        pipeline: Pipeline,
        *,
        accept_identity: bool = False,
        share_topics: bool = False,
        rename: str | None = None,
        joined_by: str | None = None,
    ) -> bool:
        """Register a pipeline; return True if anything was written.

        `rename` is the pipeline's previous name: all its rows get the new one. `joined_by` is the pattern of Tables
        that are at work: if their member is new, the ledger also has when it joined.

        Raises IdentityChanged if the pipeline is registered with another identity, and ConfigurationError if another
        pipeline writes to its tables by other rules. With `accept_identity` it raises neither: pipelines that share
        a target are changed one after the other, and check() lets none of them run until they agree.

        Raises ConfigurationError if another pipeline loads one of its topics into the same target, unless
        `share_topics` allows both.
        """
        _QUERIES.lock_registrations(self._connection)
        registered = self._find(pipeline.name)
        renamed = rename is not None and self._rename(rename, pipeline.name, registered)
        if renamed:
            registered = self._find(pipeline.name)
        shares = share_topics or (registered is not None and registered.shares_topics)
        own = build_definition(pipeline, shares_topics=shares)
        others = self._others(own)
        if not accept_identity:
            if registered is not None:
                check_identity(own, registered)
            check_sharing(own, others)
        self._check_topics(own, others, adds=adds_topics(own, registered))
        self._check_forwarded_alone(pipeline, own, others)
        if registered == own and self._streams.is_registered(pipeline):
            return renamed
        # A batch that is being published ends first: what it checked under this lock must hold until its commit.
        _QUERIES.lock_pipeline(self._connection, pipeline=pipeline.name)
        if registered is None and joined_by is not None:
            _QUERIES.register_member(self._connection, **asdict(own), pattern=joined_by)
        elif registered != own:
            _QUERIES.register_pipeline(self._connection, **asdict(own))
        self._streams.register(pipeline)
        return True

    def find_joined(self, names: Iterable[str]) -> set[str]:
        """Return those pipelines that have joined Tables."""
        rows = _QUERIES.joined_pipelines(self._connection, names=list(names))
        return {row.pipeline for row in rows}

    def read_all(self) -> list[Definition]:
        """Return the registrations of all pipelines, by name."""
        return read_rows(Definition, _QUERIES.list_pipelines(self._connection))

    def read(self, name: str) -> Definition:
        """Return the registration of the pipeline of this name. Raises NotRegistered."""
        if (definition := self._find(name)) is None:
            raise NotRegistered(
                f"pipeline {name!r} is not in the ledger of database {self._connection.info.dbname!r}, which has "
                f"{self._names()}. Check the name and the connection string."
            )
        return definition

    def read_or_members(self, name: str) -> list[Definition]:
        """Return the registration of this name or, if it is that of Tables, those of all members.

        Raises NotRegistered.
        """
        if (definition := self._find(name)) is not None:
            return [definition]
        members = [each for each in self.read_all() if each.name.startswith(f"{name}.")]
        return members or [self.read(name)]

    def check(self, pipeline: Pipeline, *, may_double: bool = False) -> Definition:
        """Return the registration of a pipeline.

        Raises NotRegistered or IdentityChanged unless the pipeline is registered as it is now.

        Raises ConfigurationError if another pipeline writes to its tables by other rules or, unless `may_double`,
        loads the same topics into the same target without permission.
        """
        row = _QUERIES.get_pipeline(self._connection, pipeline=pipeline.name)
        return self._check_row(pipeline, row, may_double=may_double)

    def lock(self, pipeline: Pipeline) -> None:
        """Lock the pipeline until the transaction ends, and check as check() does."""
        self._check_row(pipeline, _QUERIES.lock_pipeline(self._connection, pipeline=pipeline.name))

    def try_lock_sharing(self, pipeline: Pipeline) -> bool:
        """Lock the pipeline, and all others that write to its tables, until the transaction ends.

        Returns False, and locks none, if another transaction has locked one of them.
        """
        names = [pipeline.name, *self.find_sharing(pipeline)]
        with self._connection.cursor() as cursor:
            cursor.execute("savepoint lock_pipelines")
            try:
                list(_QUERIES.lock_pipelines(self._connection, names=names))
            except psycopg2.errors.LockNotAvailable:
                cursor.execute("rollback to savepoint lock_pipelines")
                return False
            cursor.execute("release savepoint lock_pipelines")
        return True

    def read_planned_batches(self, pipeline: Pipeline) -> tuple[list[int], int]:
        """Return the planned batches of the pipeline and of all others that write to its tables, and an ID that is
        greater than those of all their batches."""
        row = _QUERIES.planned_batches(self._connection, names=[pipeline.name, *self.find_sharing(pipeline)])
        return list(row.planned), int(row.next)

    def find_sharing(self, pipeline: Pipeline) -> list[str]:
        """Return the names of the other pipelines that write to any of its tables."""
        own = build_definition(pipeline)
        return [other.name for other in sharing(own, self._others(own))]

    def find_removed_topics(self, pipeline: Pipeline) -> list[str]:
        """Return topics that the pipeline has processed and no longer loads.

        Topics that another pipeline with the same tables has processed, at any time, are left out.
        """
        names = [pipeline.name, *self.find_sharing(pipeline)]
        stored = list(_QUERIES.stored_topics(self._connection, pipelines=names))
        own = {row.topic for row in stored if row.pipeline == pipeline.name}
        others = {row.topic for row in stored if row.pipeline != pipeline.name}
        return sorted(topic for topic in own - others if not pipeline.loads(topic))

    def check_one_log(self, pipeline: Pipeline) -> None:
        """Raise ConfigurationError if offsets order the changes of a target, and a topic's are from several logs.

        Each log begins at offset 0, whether the topic was deleted and created again or is another cluster's.
        """
        own = build_definition(pipeline)
        self._check_one_log(pipeline, own, self._others(own))

    def read_epochs(self, pipeline: Pipeline) -> Sequence[Mapping[TopicPartition, int]]:
        """Return for each epoch at which offset of each partition it begins; at 0 in a partition that is not named.

        There are as many epochs as any pipeline with the same target has: their changes are compared.
        """
        names = [pipeline.name, *self.find_sharing(pipeline)]
        rows = list(_QUERIES.position_epochs(self._connection, pipelines=names))
        epochs: list[dict[TopicPartition, int]] = [
            {} for _ in range(max((row.epoch for row in rows), default=0))
        ]
        for row in rows:
            if row.pipeline == pipeline.name:
                epochs[row.epoch - 1][row.topic, row.partition] = row.from_offset
        return epochs

    def begin_epoch(self, name: str, epoch: int, starts: Mapping[TopicPartition, int]) -> None:
        """Begin an epoch of a pipeline at an offset of each partition."""
        _QUERIES.insert_position_epoch(
            self._connection,
            pipeline=name,
            epoch=epoch,
            topic=[topic for topic, _ in starts],
            partition=[partition for _, partition in starts],
            from_offset=list(starts.values()),
        )

    def _check_row(self, pipeline: Pipeline, row: Any, *, may_double: bool = False) -> Definition:
        own = build_definition(pipeline)
        others = self._others(own)
        if row is None:
            raise NotRegistered(
                f"pipeline {pipeline.name!r} is not in the ledger of database "
                f"{self._connection.info.dbname!r}, which has {self._names()}. {_or_renamed(own, others)} this is "
                f"the right database, run `exactbatch register` for it once."
            )
        registered = read_row(Definition, row)
        check_identity(own, registered)
        check_sharing(own, others)
        self._check_one_log(pipeline, own, others)
        self._streams.check(pipeline)
        self._check_forwarded_alone(pipeline, own, others)
        if not may_double:
            own = replace(own, shares_topics=registered.shares_topics)
            self._check_topics(own, others, adds=False)
        return registered

    def _check_one_log(self, pipeline: Pipeline, own: Definition, others: Iterable[Definition]) -> None:
        companions = sharing(own, others)
        if own.version or not pipeline.traits.keeps_deletes or not companions:
            return
        names = [own.name, *(other.name for other in companions)]
        row = _QUERIES.topic_with_several_logs(self._connection, pipelines=names)
        if row is not None:
            raise ConfigurationError(
                f"pipelines {' and '.join(map(repr, row.pipelines))} load different logs of topic {row.topic!r} into "
                f"the target {own.target}: the topic was deleted and created again, or is on two clusters. Offsets "
                f"order the changes of a key in this target, and say nothing about changes of different logs. Give "
                f"the Upsert a version, or load the other log into a new target.",
                topic=row.topic,
            )

    def _check_forwarded_alone(
        self, pipeline: Pipeline, own: Definition, others: Iterable[Definition]
    ) -> None:
        """Raise ConfigurationError if one pipeline forwards the changes of a derived target that others change, too."""
        if not pipeline.traits.is_derived:
            return
        names = sorted([pipeline.name, *(other.name for other in sharing(own, others))])
        if len(names) > 1 and (pipeline.forward is not None or any(map(self._streams.read, names))):
            raise ConfigurationError(
                f"pipelines {' and '.join(map(repr, names))} share the target {pipeline.traits.target}, and one of "
                f"them forwards its changes to a topic, which would lack those of the others. Give each its own "
                f"target, or let one pipeline load all topics."
            )

    def _check_topics(self, own: Definition, others: Iterable[Definition], *, adds: bool) -> None:
        """Check the topics that the others have ever loaded: rows of topics that they no longer load remain."""
        companions = sharing(own, others)
        if not companions or own.shares_topics:
            return
        loaded: dict[str, set[str]] = {each.name: set(each.topics) for each in (own, *companions)}
        for row in _QUERIES.stored_topics(self._connection, pipelines=list(loaded)):
            if row.pipeline != own.name or (own.pattern is not None and own.loads(row.topic)):
                loaded[row.pipeline].add(row.topic)
        own = replace(own, topics=sorted(loaded[own.name]))
        for other in companions:
            check_topics(own, replace(other, topics=sorted(loaded[other.name])), adds=adds)

    def _rename(self, old: str, new: str, registered: Definition | None) -> bool:
        """Give a pipeline its new name; return False if it has it already."""
        if old == new:
            raise ConfigurationError(
                f"pipeline {new!r} cannot be renamed to the name that it has. Give --rename its previous name."
            )
        previous = self._find(old)
        if previous is None and registered is not None:
            return False
        if previous is None:
            raise NotRegistered(
                f"pipeline {old!r} is not in the ledger of database {self._connection.info.dbname!r}, which has "
                f"{self._names()}: it cannot be renamed to {new!r}. Check the name and the connection string."
            )
        if registered is not None:
            raise ConfigurationError(
                f"pipelines {old!r} and {new!r} are both registered, so {old!r} cannot be renamed to {new!r}. "
                f"Choose an unused name."
            )
        _QUERIES.rename_pipeline(self._connection, old=old, new=new)
        return True

    def _find(self, name: str) -> Definition | None:
        row = _QUERIES.get_pipeline(self._connection, pipeline=name)
        return None if row is None else read_row(Definition, row)

    def _others(self, own: Definition) -> list[Definition]:
        """Return the other registrations that may be of pipelines with a table of this one, and perhaps more."""
        rows = _QUERIES.other_pipelines(
            self._connection, pipeline=own.name, tables=targets_beside(own), sinks=list(KINDS)
        )
        return read_rows(Definition, rows)

    def _names(self) -> str:
        return ", ".join(definition.name for definition in self.read_all()) or "no pipeline at all"


def _or_renamed(own: Definition, others: Iterable[Definition]) -> str:
    """Name the pipelines that are registered with the same target, and begin the sentence on registering."""
    names = [other.name for other in others if other.table == own.table]
    if not names:
        return "If"
    return (
        f"{', '.join(map(repr, names))} {'is' if len(names) == 1 else 'are'} registered with the same target, "
        f"{own.target}. If {own.name!r} is {names[0]!r} under a new name, run `exactbatch register` for {own.name!r} "
        f"with `--rename {names[0]}`, and it continues where {names[0]!r} stands. If it is a new pipeline, and"
    )
