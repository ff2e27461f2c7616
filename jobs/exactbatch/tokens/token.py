"""The token that a provider returns."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

# Hosts that others in the network cannot listen to.
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Token:
    """A credential that expires. It is no part of the repr, so that no log has it.

    Attributes:
        value: what is sent in the place of a password
        expires_at: when it expires, in seconds since 1970-01-01 UTC
        extensions: SASL extensions that Kafka gets beside it (RFC 7628, section 3.1); Postgres has none

    Raises ValueError for an empty value, and for a time that is not a number.
    """

    value: str = field(repr=False)
    expires_at: float
    extensions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.value, str) or not self.value:
            raise ValueError("the value of a token is text, and not empty")
        if not math.isfinite(self.expires_at):
            raise ValueError(f"expires_at is in seconds since 1970, found {self.expires_at}")


# It gets the properties of a connection to Kafka, or the parts of a connection string of Postgres.
Provider = Callable[[Mapping[str, Any]], Token]
