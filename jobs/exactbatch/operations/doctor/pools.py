"""Check Airflow's pools through its REST API, without importing Airflow."""

import json
import os
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import unquote, urlsplit

import httpx

from exactbatch.operations.airflow_api import airflow_api, airflow_url, pool_slots
from exactbatch.operations.doctor.finding import Finding

_DEFAULT: Final = "default_pool"


def check_pools(connection_id: str | None, names: Sequence[str]) -> Iterator[Finding]:
    """Look for the default pool and for these pools, and whether they have slots."""
    if connection_id is None:
        yield Finding(
            "Airflow's pools", "ok", "not asked for: --airflow names a connection to Airflow's REST API"
        )
        return
    variable = f"AIRFLOW_CONN_{connection_id.upper()}"
    text = os.environ.get(variable)
    if not text:
        yield Finding(
            "Airflow's pools",
            "problem",
            f"the environment variable {variable} is not set",
            f"Set {variable} to the URI of Airflow's REST API.",
        )
        return
    url, login, password = _access(text)
    try:
        with airflow_api(url, login, password) as client:
            pools = {name: pool_slots(client, name) for name in (_DEFAULT, *names)}
    except (httpx.HTTPError, KeyError, ValueError) as error:
        yield Finding(
            "Airflow's pools",
            "problem",
            f"Airflow's REST API at {url} does not answer as expected: {type(error).__name__}: {error}",
            f"Check that Airflow is up, and correct host, login and password in {variable}.",
        )
        return
    wrong = False
    for name, slots in pools.items():
        if slots is None:
            wrong = True
            yield Finding(
                "Airflow's pools",
                "problem",
                f"Airflow has no pool {name!r}, so it would never start the tasks that name it",
                f"Run `airflow pools set {name} 1 exactbatch`.",
            )
        elif slots == 0:
            wrong = True
            yield Finding(
                "Airflow's pools",
                "problem",
                f"the pool {name!r} has no slots",
                f"Run `airflow pools set {name} 1 exactbatch`.",
            )
    if not wrong:
        yield Finding("Airflow's pools", "ok", f"{', '.join(pools)}: exist and have slots")


def _access(text: str) -> tuple[str, str | None, str | None]:
    """Return URL, login and password of a connection of Airflow, written as JSON or as a URI."""
    if text.lstrip().startswith("{"):
        fields = json.loads(text)
        url = airflow_url(fields.get("host"), fields.get("port"))
        return url, fields.get("login"), fields.get("password")
    # The host of a connection may begin with its own scheme: http://https://host, or http://https%3A%2F%2Fhost.
    if text.count("://") > 1:
        text = text.partition("://")[2]
    parts = urlsplit(text)
    host = unquote(parts.hostname or "localhost")
    if "/" in host:  # urlsplit() writes a host in lower case, but a path has its own
        host = unquote(parts.netloc.rpartition("@")[2].partition(":")[0])
    url = airflow_url(host if "://" in host else f"{parts.scheme}://{host}", parts.port)
    login, password = (None if each is None else unquote(each) for each in (parts.username, parts.password))
    return url, login, password
