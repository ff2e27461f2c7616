"""Executors decode records: they must run the same version of exactbatch as their driver."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from exactbatch.errors import ConfigurationError


@cache
def installed_version() -> str | None:
    """Return the version of exactbatch that this process runs; None if it is on the path without being installed."""
    try:
        return version("exactbatch")
    except PackageNotFoundError:
        return None


def other_version(of_driver: str | None) -> ConfigurationError | None:
    """Return the error for an executor that has another version than its driver; None if it has not, or if either
    version is not known."""
    own = installed_version()
    if None in (own, of_driver) or own == of_driver:
        return None
    return ConfigurationError(
        f"the executors run exactbatch {own}, and the driver {of_driver}: they could decode records in another way. "
        f"Nothing was written. Install the same version on both: docs/howto/upgrade.md says in which order."
    )
