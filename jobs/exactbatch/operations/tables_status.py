"""Show the state of many tables at once: the status of each member, from one query of the logs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from exactbatch.errors import ExactbatchError, NotRegistered
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.operations.status import PipelineStatus, load_status
from exactbatch.planning.members import find_members
from exactbatch.planning.plan_tables import existing_partitions
from exactbatch.postgres.connection import Connection
from exactbatch.tables import Tables


@dataclass(frozen=True, slots=True)
class TablesStatus:
    """The status of each member of Tables, by name.

    new     members whose topics match the pattern, and that join at the next plan
    errors  why the status of other members is not known
    """

    tables: Tables
    members: tuple[PipelineStatus, ...]
    new: tuple[str, ...] = ()
    errors: Mapping[str, ExactbatchError] = field(default_factory=dict)

    @property
    def lag(self) -> int:
        """Number of unprocessed offsets of all members whose status is known."""
        return sum(partition.lag for member in self.members for partition in member.partitions)

    @property
    def troubles(self) -> list[str]:
        """Sentences that say what blocks which member."""
        return [
            *(f"{name}: {type(error).__name__}: {error}" for name, error in self.errors.items()),
            *(f"{each.pipeline.name}: {trouble}" for each in self.members for trouble in each.troubles),
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the content of `exactbatch status --json`."""
        return {
            "tables": self.tables.name,
            "lag": self.lag,
            "members": [member.as_json() for member in self.members],
            "new": list(self.new),
            "errors": {name: f"{type(error).__name__}: {error}" for name, error in self.errors.items()},
        }


def load_tables_status(connection: Connection, broker: KafkaBroker, tables: Tables) -> TablesStatus:
    """Query the ledger and, once for all members, the broker.

    Raises PostgresUnavailable, KafkaUnavailable, ConfigurationError, and TopicMissing if no topic matches.
    """
    members, unmade = find_members(connection, broker, tables)
    logs, _ = existing_partitions(broker, {member.known_topics(())[0] for member in members})
    found, new, errors = [], [], dict[str, ExactbatchError](unmade)
    for member in members:
        try:
            found.append(load_status(connection, broker, member, logs=logs.get(member.known_topics(())[0])))
        except NotRegistered:
            new.append(member.name)
        except ExactbatchError as error:
            errors[member.name] = error
    return TablesStatus(tables, tuple(found), tuple(new), errors)
