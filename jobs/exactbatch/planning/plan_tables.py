"""Plan one run of many tables: ask Kafka once for all members, and plan each by itself."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from exactbatch.errors import (
    ConfigurationError,
    ExactbatchError,
    KafkaUnavailable,
    StoredOffsetBeyondLog,
    TopicMissing,
)
from exactbatch.errors.translation import translate_all_errors
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.identity import check_same_logs, known_as
from exactbatch.ledger import DagRun, Ledger, Origin
from exactbatch.model import Fingerprint, LogPartition, Plan
from exactbatch.pipeline import Pipeline
from exactbatch.planning.freeze_advance import Observed, freeze_advance, observe_advance, preview_advance
from exactbatch.planning.known_records import warn_of_unknown, worth_comparing
from exactbatch.planning.members import as_they_start, find_members, join_members, selected
from exactbatch.planning.request import ReplayRequest
from exactbatch.planning.run import RunPlan, plan_run
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.tables import Tables

# After these, the brokers have had enough time to learn about their topics: later members ask once.
_SETTLED: Final = (TopicMissing, StoredOffsetBeyondLog)


def observe_members(
    connection: Connection, broker: KafkaBroker, members: Sequence[Pipeline]
) -> dict[str, Observed]:
    """Observe all members with a few requests to Kafka; return what was observed by name.

    Members that need another look are left out: of a topic that is missing, denied, without a leader or not known to be
    the one that was processed, and those whose start a consumer group or a time decides. freeze_advance() asks for them
    again, patiently, and raises their errors.
    """
    ledger = Ledger(connection)
    with transaction(connection):
        stored = {member.name: ledger.plans.read_stored_offsets(member) for member in members}
        known = {member.name: ledger.fingerprints.read(member.name) for member in members}
    topics = {member.known_topics(())[0] for member in members}
    processed = {offset.topic for offsets in stored.values() for offset in offsets}
    logs, _ = existing_partitions(broker, topics, processed)
    offsets_of_all = [offset for offsets in stored.values() for offset in offsets]
    logs = {topic: list(known_as(offsets_of_all, partitions)) for topic, partitions in logs.items()}
    others = _topics_of_other_logs(
        broker,
        [fingerprint for each in known.values() for fingerprint in each],
        [
            partition
            for member in members
            for partition in worth_comparing(stored[member.name], logs.get(member.known_topics(())[0], ()))
        ],
    )
    observed = {}
    for member in members:
        (topic,) = member.known_topics(())
        own = tuple(offset for offset in stored[member.name] if offset.topic == topic)
        if (
            topic in others
            or topic not in logs
            or (member.start not in ("earliest", "latest") and not isinstance(member.start, Mapping))
        ):
            continue
        try:
            check_same_logs(own, logs[topic])
            observed[member.name] = observe_advance(
                broker, member, stored[member.name], known[member.name], partitions=tuple(logs[topic])
            )
        except ExactbatchError:
            continue
    return observed


def _topics_of_other_logs(
    broker: KafkaBroker, known: Sequence[Fingerprint], partitions: Sequence[LogPartition]
) -> set[str]:
    """Return the topics that do not have the known records, and those that this client may not read."""
    denied = set[str]()
    while True:
        try:
            compared = broker.compare_fingerprints(known, [p for p in partitions if p.topic not in denied])
        except ExactbatchError as error:
            if error.topic is None or error.topic in denied:
                raise
            denied.add(error.topic)
        else:
            warn_of_unknown(compared, partitions)
            return denied.union(topic for topic, _ in compared.errors)


def existing_partitions(
    broker: KafkaBroker, topics: Collection[str], processed: Collection[str] = ()
) -> tuple[dict[str, list[LogPartition]], dict[str, ExactbatchError]]:
    """Return the partitions of topics, by topic, and the errors of topics that are missing, denied or lack a leader.

    One query, and one more for each topic with an error. Raises KafkaUnavailable and ConfigurationError if these do
    not concern a topic alone.
    """
    remaining, logs = set(topics), dict[str, list[LogPartition]]()
    errors: dict[str, ExactbatchError] = {}
    while remaining:
        try:
            partitions = broker.partitions(sorted(remaining), processed)
        except (ConfigurationError, KafkaUnavailable, TopicMissing) as error:
            if error.topic not in remaining:
                raise
            remaining.remove(error.topic)
            errors[error.topic] = error
            continue
        for partition in partitions:
            logs.setdefault(partition.topic, []).append(partition)
        break
    return logs, errors


def preview_tables(
    connection: Connection, broker: KafkaBroker, tables: Tables
) -> dict[str, Plan | ExactbatchError]:
    """Return the plan of each member's next advance, or its error, by name. Writes and locks nothing."""
    made, unmade = find_members(connection, broker, tables)
    members = as_they_start(connection, tables, made)
    found: dict[str, Plan | ExactbatchError] = dict(unmade)
    observed = observe_members(connection, broker, members)
    for member in members:
        try:
            with translate_all_errors():
                if member.name in observed:
                    found[member.name] = observed[member.name].plan(member)
                else:
                    found[member.name], _ = preview_advance(connection, broker, member)
        except ExactbatchError as error:
            found[member.name] = error
            if isinstance(error, _SETTLED):
                broker = broker.without_settling()
    return found


def plan_tables(
    connection: Connection,
    broker: KafkaBroker,
    tables: Tables,
    run: DagRun | None,
    request: ReplayRequest | None,
    *,
    origin: Origin,
    only: Collection[str] = (),
) -> list[RunPlan]:
    """Plan a run of all members, or of those whose tables are named in `only`, even if one fails.

    Without a `run`, a command plans advances. Ranges and batch IDs are requests to the members to which these belong; a
    window is one to all.

    Raises ConfigurationError for a request that names what no member has, and what find_members() and join_members()
    raise.
    """
    made, unmade = find_members(connection, broker, tables)
    members, errors = join_members(connection, tables, made)
    if only:
        unmade = {name: error for name, error in unmade.items() if name.removeprefix(tables.prefix) in only}
        members = selected(
            tables, members, [table for table in only if f"{tables.prefix}{table}" not in unmade]
        )
    requests = _requests(connection, tables, members, unmade, request)
    if requests is not None:
        members = [member for member in members if member.name in requests]
    observed = observe_members(connection, broker, members) if request is None else {}
    plans = []
    if request is None or request.window is not None:  # other requests name whom they concern
        plans = [RunPlan(name, None, error=error) for name, error in unmade.items()]
    for member in members:
        if member.name in errors:
            plans.append(RunPlan(member.name, member, error=errors[member.name]))
            continue
        try:
            with translate_all_errors():
                plans.append(
                    _plan(
                        connection,
                        broker,
                        member,
                        run,
                        None if requests is None else requests[member.name],
                        origin=origin,
                        observed=observed.get(member.name),
                    )
                )
        except ExactbatchError as error:
            plans.append(RunPlan(member.name, member, error=error))
            if isinstance(error, _SETTLED):
                broker = broker.without_settling()
    return plans


def _plan(
    connection: Connection,
    broker: KafkaBroker,
    member: Pipeline,
    run: DagRun | None,
    request: ReplayRequest | None,
    *,
    origin: Origin,
    observed: Observed | None,
) -> RunPlan:
    if request is not None and request.window is not None and not _has_processed(connection, member):
        because = (
            f"nothing to process again: no offset of {member.topics_text} has been processed yet; the next advance "
            f"starts with its first"
        )
        return RunPlan(member.name, member, because=because)
    if run is not None:
        return plan_run(connection, broker, member, run, request, origin=origin, observed=observed)
    batch_id = freeze_advance(connection, broker, member, origin=origin, observed=observed)
    if batch_id is None:
        return RunPlan(member.name, member, because=f"nothing new in {member.topics_text}")
    with transaction(connection):
        return RunPlan(member.name, member, Ledger(connection).batches.read(batch_id))


def _has_processed(connection: Connection, member: Pipeline) -> bool:
    """True if a member has stored offsets. Raises NotRegistered and IdentityChanged."""
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.registry.check(member)
        return bool(ledger.plans.read_stored_offsets(member))


def _requests(
    connection: Connection,
    tables: Tables,
    members: Sequence[Pipeline],
    unmade: Mapping[str, ConfigurationError],
    request: ReplayRequest | None,
) -> Mapping[str, ReplayRequest] | None:
    """Return the request to each member that it concerns; None without one.

    Raises ConfigurationError if no member has a topic or a batch of the request, and the error of a member that is
    among the `unmade`.
    """
    if request is None:
        return None
    if request.window is not None:
        return {member.name: request for member in members}
    found: dict[str, ReplayRequest] = {}
    names = {member.name for member in members}
    if request.ranges:
        by_topic = {member.known_topics(())[0]: member.name for member in members}
        for range_ in request.ranges:
            if range_.topic not in by_topic:
                for name in (range_.topic, tables.name_member(range_.topic)):
                    if name in unmade:
                        raise unmade[name]
                raise ConfigurationError(f"{range_}: no table of {tables.name!r} loads this topic")
            name = by_topic[range_.topic]
            ranges = found[name].ranges if name in found else ()
            found[name] = replace(request, ranges=(*ranges, range_))
        return found
    with transaction(connection):
        batches = Ledger(connection).batches.read_several(request.batch_ids)
    for batch in batches:
        if batch.pipeline in unmade:
            raise unmade[batch.pipeline]
        if batch.pipeline not in names:
            raise ConfigurationError(
                f"batch {batch.batch_id} is one of pipeline {batch.pipeline!r}, which is no table of {tables.name!r}"
            )
        ids = found[batch.pipeline].batch_ids if batch.pipeline in found else ()
        found[batch.pipeline] = replace(request, batch_ids=(*ids, batch.batch_id))
    return found
