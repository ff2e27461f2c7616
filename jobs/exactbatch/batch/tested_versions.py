"""The versions of other programs that the tests have run with; docs/requirements.md has the results of each.

A newer one may work. It is not refused, but said: in the log of each driver once, and by `exactbatch doctor`.
"""

import logging
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from exactbatch.batch.spark.pyspark_packages import SUPPORTED

# The oldest and the newest of each.
TESTED: Final[Mapping[str, tuple[str, str]]] = {
    "Airflow": ("3.0", "3.3"),
    "Spark": (SUPPORTED[0], SUPPORTED[-1]),
    "Python": ("3.11", "3.13"),
    "Postgres": ("14", "18"),
    "Kafka": ("2.8", "4.1"),  # a broker does not say its version
}
REMEDY: Final = (
    "Try it with a target that you can load again, or use a version in `exactbatch explain requirements`."
)
logger = logging.getLogger(__name__)

_PACKAGES: Final = {"Airflow": "apache-airflow-core", "Spark": "pyspark"}


def installed() -> dict[str, str]:
    """Return the versions of this Python, and of Airflow and Spark if they are installed in it."""
    found = {"Python": platform.python_version()}
    for name, package in _PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            continue
    return found


def of_postgres(number: int) -> str:
    """Return a version of Postgres as people write it, such as 18.1 for 180001."""
    return f"{number // 10000}.{number % 10000}"


@cache
def warn_if_untested(postgres: int) -> None:
    """Log once in this process what of it, and of a Postgres with this number, is newer than what was tested."""
    for name, found in (*installed().items(), ("Postgres", of_postgres(postgres))):
        if (said := untested(name, found)) is not None:
            logger.warning("%s. %s", said, REMEDY)


def untested(name: str, found: str) -> str | None:
    """Return a sentence about a version that is newer than all that were tested, and None for any other."""
    oldest, newest = TESTED[name]
    if _numbers(found)[: len(_numbers(newest))] <= _numbers(newest):
        return None
    return f"{name} {found} is newer than those that exactbatch was tested with, {oldest} to {newest}"


def _numbers(of: str) -> tuple[int, ...]:
    return tuple(int(each) for each in of.split(".") if each.isdecimal())
