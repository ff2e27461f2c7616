"""Versions of Postgres, as libpq numbers them: 140023 is 14.23."""

from typing import Any, Final

from psycopg2 import sql

from exactbatch.errors import ConfigurationError

OLDEST: Final = 140000
NULLS_NOT_DISTINCT: Final = 150000  # the first version that has this option of a unique constraint
PUBLISHED_SCHEMAS: Final = 150000  # the first version whose publications have schemas and lists of columns
INPUT_CHECKS: Final = (
    160000  # the first version that has pg_input_is_valid(), pg_input_error_info() and `is json`
)

# Whether the index `i` of pg_index holds nulls to be equal; Postgres 14 has no such column, nor such an index.
HOLDS_NULLS_EQUAL: Final = sql.SQL("coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false)")


def check_version(version: int) -> None:
    """Raise ConfigurationError if a server of this version is too old."""
    if (error := too_old(version)) is not None:
        raise error


def too_old(version: int) -> ConfigurationError | None:
    """Return the error for a server of this version; None if it is new enough."""
    if version >= OLDEST:
        return None
    return ConfigurationError(
        f"expected Postgres {OLDEST // 10000} or newer, found {version // 10000}. Upgrade the server."
    )


class Since(sql.Composable):
    """`newer` for a server of a version or a newer one, and `older` for all others."""

    def __init__(self, version: int, newer: sql.Composable, older: sql.Composable) -> None:
        super().__init__((version, newer, older))
        self._version, self._newer, self._older = version, newer, older

    def as_string(self, context: Any) -> str:
        """Return the text for the server of a connection or of a cursor."""
        connection = getattr(context, "connection", context)
        chosen = self._newer if connection.server_version >= self._version else self._older
        return chosen.as_string(context)
