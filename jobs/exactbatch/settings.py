"""How to reach Kafka and Postgres: from the environment, and nowhere else."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from exactbatch.errors import ConfigurationError

KAFKA: Final = "EXACTBATCH_KAFKA"
POSTGRES: Final = "EXACTBATCH_POSTGRES"


@dataclass(frozen=True, slots=True)
class Settings:
    """Kafka client properties, with librdkafka's dotted names, and a libpq connection string.

    Both may hold secrets, so neither is part of the repr.
    """

    kafka: Mapping[str, Any] = field(repr=False)
    postgres: str = field(repr=False)

    @classmethod
    def from_environment(cls) -> "Settings":
        """Read EXACTBATCH_KAFKA (a JSON object) and EXACTBATCH_POSTGRES.

        Raises ConfigurationError when one is missing or is not what it should be.
        """
        return cls(kafka=_kafka(_required(KAFKA)), postgres=_required(POSTGRES))

    def as_environment(self) -> dict[str, str]:
        """The variables from which from_environment() makes the same settings."""
        return {KAFKA: json.dumps(dict(self.kafka)), POSTGRES: self.postgres}


def parse_object(text: str) -> Any:
    """JSON text, whose objects have no name twice: the standard library would keep the last value and say nothing.

    Raises json.JSONDecodeError, and ConfigurationError for a name that is given twice.
    """
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ConfigurationError(
            f"{', '.join(twice)}: given twice in one JSON object. Keep one of the values"
        )
    return found


def _required(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise ConfigurationError(
            f"expected the environment variable {name}, found none. `exactbatch local up` starts Kafka and "
            f"Postgres on this machine and prints it."
        )
    return value


def _kafka(text: str) -> dict[str, Any]:
    try:
        properties = parse_object(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{KAFKA}: {error}.") from None
    except json.JSONDecodeError as error:
        properties, found = None, f"text that is no JSON at character {error.pos}"
    else:
        found = type(properties).__name__
    if not isinstance(properties, dict):
        raise ConfigurationError(
            f"expected {KAFKA} to be a JSON object of Kafka client properties, as "
            f'{{"bootstrap.servers": "host:9092"}}, found {found}'
        )
    return properties
