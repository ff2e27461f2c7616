"""The members of Tables: which there are, which join by a pattern, and where these start."""

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from exactbatch.errors import ConfigurationError, ExactbatchError, NotRegistered
from exactbatch.errors.translation import translate_all_errors
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
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
    if not isinstance(tables.topics, TopicPattern):
        return tables.possible_members(tables.topics)
    known = [topic for topic in _registered_topics(connection, tables) if tables.loads(topic)]
    return tables.possible_members(broker.matching_topics(tables.topics, known), registered=known)


def registered_members(connection: Connection, tables: Tables) -> list[Pipeline]:
    """Return the members of Tables that are registered, by name. Asks no broker. Raises ConfigurationError."""
    return tables.members(topic for topic in _registered_topics(connection, tables) if tables.loads(topic))


def _registered_topics(connection: Connection, tables: Tables) -> set[str]:
    with transaction(connection):
        registered = Ledger(connection).registered()
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
    if not isinstance(tables.topics, TopicPattern):
        return list(members), errors
    with transaction(connection):
        registered = {each.name for each in ledger.registered()}
    if not any(name.startswith(tables.prefix) for name in registered):
        raise NotRegistered(
            f"no member of the tables {tables.name!r} is in the ledger of database {connection.info.dbname!r}. Check "
            f"the connection string. If this is the right database, run `exactbatch init` for {tables.name!r} once."
        )
    for member in members:
        if member.name in registered:
            continue
        try:
            with translate_all_errors(), transaction(connection):
                ledger.register(member, joined_by=tables.topics.regex)
        except ExactbatchError as error:
            errors[member.name] = error
        else:
            logger.info("%s joins: its topic matches %r", member.name, tables.topics.regex)
    return as_they_start(connection, tables, members), errors


def joined_by(tables: Tables, member: str, registered: Collection[str]) -> str | None:
    """Return the pattern by which a member joins Tables that are at work; None if it does not join.

    `registered` are the names of all registered pipelines.
    """
    if not isinstance(tables.topics, TopicPattern) or member in registered:
        return None
    at_work = any(name.startswith(tables.prefix) for name in registered)
    return tables.topics.regex if at_work else None


def as_they_start(connection: Connection, tables: Tables, members: Sequence[Pipeline]) -> list[Pipeline]:
    """Return members; those that join while others are at work start at the earliest offset of their topic.

    Their first records would be lost with start="latest".
    """
    if not isinstance(tables.topics, TopicPattern):
        return list(members)
    with transaction(connection):
        ledger = Ledger(connection)
        registered = {each.name for each in ledger.registered() if each.name.startswith(tables.prefix)}
        late = ledger.joined_pipelines(member.name for member in members)
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
