"""The members of Tables: which there are, which join by a pattern, and where these start."""

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from exactbatch.errors import ConfigurationError, ExactbatchError, NotRegistered
from exactbatch.errors.translation import translate_all_errors
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Batch, Ledger
from exactbatch.model import PlannedBatch
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.tables import Tables
from exactbatch.topic_pattern import TopicPattern

logger = logging.getLogger(__name__)

_SHOWN: Final = 5


def find_members(
    connection: Connection, broker: KafkaBroker, tables: Tables
) -> tuple[list[Pipeline], dict[str, ConfigurationError]]:
    """Return the members of Tables, by name: of the named topics, or of all that match and those that ever did.

    Also returns the errors of topics that have no member, as Tables.possible_members() does: these stop no other.

    Raises TopicMissing if no topic matches, KafkaUnavailable and PostgresUnavailable.
    """
    if not isinstance(tables.topic_names, TopicPattern):
        return tables.possible_members(tables.topic_names)
    known = [topic for topic in _registered_topics(connection, tables) if tables.loads(topic)]
    return tables.possible_members(broker.matching_topics(tables.topic_names, known), registered=known)


def registered_members(connection: Connection, tables: Tables) -> list[Pipeline]:
    """Return the members of Tables that are registered, by name. Asks no broker. Raises ConfigurationError."""
    return tables.members(topic for topic in _registered_topics(connection, tables) if tables.loads(topic))


def _registered_topics(connection: Connection, tables: Tables) -> set[str]:
    with transaction(connection):
        registered = Ledger(connection).registry.read_all()
    return {topic for each in registered if each.name.startswith(tables.prefix) for topic in each.topics}


def join_members(
    connection: Connection, tables: Tables, members: Sequence[Pipeline]
) -> tuple[list[Pipeline], dict[str, ExactbatchError]]:
    """Register members whose topics have come to match the pattern; return all members, and errors by name.

    A member that joined this way starts at the earliest offset of its topic, so that its first records are not lost
    with start="latest".

    Raises NotRegistered if no member at all is registered: this may be the wrong database.
    """
    ledger, errors = Ledger(connection), dict[str, ExactbatchError]()
    if not isinstance(tables.topic_names, TopicPattern):
        return list(members), errors
    with transaction(connection):
        registered = {each.name for each in ledger.registry.read_all()}
    if not any(name.startswith(tables.prefix) for name in registered):
        raise NotRegistered(
            f"no member of the tables {tables.name!r} is in the ledger of database {connection.info.dbname!r}. Check "
            f"the connection string. If this is the right database, run `exactbatch register` for {tables.name!r} once."
        )
    for member in members:
        if member.name in registered:
            continue
        try:
            with translate_all_errors(), transaction(connection):
                ledger.registry.register(member, joined_by=tables.topic_names.regex)
        except ExactbatchError as error:
            errors[member.name] = error
        else:
            logger.info("%s joins: its topic matches %r", member.name, tables.topic_names.regex)
    return as_they_start(connection, tables, members), errors


def find_member(connection: Connection, tables: Tables, planned: PlannedBatch | Batch) -> Pipeline:
    """Return the member of Tables that loads the topic of a batch.

    Raises ConfigurationError if the Tables do not have it any more, and BatchLost.
    """
    with transaction(connection):
        batch = Ledger(connection).batches.read(planned.batch_id, planned.plan_id)
        topic = Ledger(connection).batches.read_ranges(batch.batch_id)[0].topic
    member = tables.member(topic)
    if member is None:
        raise ConfigurationError(
            f"batch {batch.batch_id} loads the topic {topic!r}, which {tables.name!r} now leaves out. Clear "
            f"plan_batch with its downstream tasks."
        )
    return member


def joined_by(tables: Tables, member: str, registered: Collection[str]) -> str | None:
    """Return the pattern by which a member joins Tables that are at work; None if it does not join.

    `registered` are the names of all registered pipelines.
    """
    if not isinstance(tables.topic_names, TopicPattern) or member in registered:
        return None
    at_work = any(name.startswith(tables.prefix) for name in registered)
    return tables.topic_names.regex if at_work else None


def as_they_start(connection: Connection, tables: Tables, members: Sequence[Pipeline]) -> list[Pipeline]:
    """Return members; those that join while others are at work start at the earliest offset of their topic.

    Their first records would be lost with start="latest".
    """
    if not isinstance(tables.topic_names, TopicPattern):
        return list(members)
    with transaction(connection):
        ledger = Ledger(connection)
        registered = {each.name for each in ledger.registry.read_all() if each.name.startswith(tables.prefix)}
        late = ledger.registry.find_joined(member.name for member in members)
    if registered:
        late |= {member.name for member in members} - registered
    return [
        replace(member, start="earliest") if member.name in late and isinstance(member.start, str) else member
        for member in members
    ]


def selected(tables: Tables, members: Sequence[Pipeline], only: Collection[str]) -> list[Pipeline]:
    """Return the members of these tables. Raises ConfigurationError for a table that has none."""
    by_name = {member.name: member for member in members}
    if unknown := sorted(table for table in only if f"{tables.prefix}{table}" not in by_name):
        names = [name.removeprefix(tables.prefix) for name in sorted(by_name)]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise ConfigurationError(
            f"{', '.join(map(repr, unknown))}: {tables.name!r} has no such table. It has "
            f"{', '.join(names[:_SHOWN])}{more}."
        )
    return [by_name[f"{tables.prefix}{table}"] for table in sorted(set(only))]
