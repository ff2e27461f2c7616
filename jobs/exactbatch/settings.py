"""The properties of the connections to Kafka and Postgres, which come from environment variables alone."""

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from exactbatch.errors import ConfigurationError

KAFKA: Final = "EXACTBATCH_KAFKA"
POSTGRES: Final = "EXACTBATCH_POSTGRES"
_EXAMPLES: Final = {
    KAFKA: 'a JSON object of Kafka client properties, such as {"bootstrap.servers": "host:9092"}',
    POSTGRES: "a libpq connection string, such as host=… dbname=…",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Kafka client properties, with librdkafka's dotted names, and a libpq connection string.

    Both may hold secrets, so neither is part of the repr.
    """

    kafka: Mapping[str, Any] = field(repr=False)
    postgres: str = field(repr=False)

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = os.environ) -> "Settings":
        """Read EXACTBATCH_KAFKA (a JSON object) and EXACTBATCH_POSTGRES (a connection string).

        Raises ConfigurationError if one of them is missing, or if EXACTBATCH_KAFKA is not a JSON object.
        """
        if missing := [
            f"the environment variable {name} is not set. Set it to {_EXAMPLES[name]}."
            for name in (KAFKA, POSTGRES)
            if not variables.get(name)
        ]:
            raise ConfigurationError(" Also, ".join(missing))
        return cls(kafka=_kafka(variables[KAFKA]), postgres=variables[POSTGRES])

    def as_environment(self) -> dict[str, str]:
        """Return the variables from which from_environment() reads the same settings."""
        return {KAFKA: json.dumps(dict(self.kafka)), POSTGRES: self.postgres}


def parse_object(text: str) -> Any:
    """Parse JSON text in which no object repeats a name; the standard library would silently keep the last value.

    Raises json.JSONDecodeError, and ConfigurationError for a repeated name.
    """
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated = sorted(name for name, count in counts.items() if count > 1)
        raise ConfigurationError(
            f"{', '.join(repeated)}: given twice in one JSON object. Keep one of the values"
        )
    return values


def _kafka(text: str) -> dict[str, Any]:
    try:
        properties = parse_object(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{KAFKA}: {error}.") from None
    except json.JSONDecodeError as error:
        properties, found = None, f"text that is not JSON at character {error.pos}"
    else:
        found = type(properties).__name__
    if not isinstance(properties, dict):
        raise ConfigurationError(f"expected {KAFKA} to be {_EXAMPLES[KAFKA]}, found {found}. Correct it.")
    return properties
