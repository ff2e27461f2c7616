"""Airflow's REST API. It is not in exactbatch.airflow, because the local stack calls it without importing Airflow."""

from urllib.parse import quote, urlsplit, urlunsplit

import httpx  # Airflow has imported it before a DAG file

_TIMEOUT = 60.0  # seconds for each request
_NOT_FOUND = 404


def airflow_url(host: str | None, port: int | None) -> str:
    """Return the address of the Airflow of a connection with this host and port: the port is before the host's path."""
    parts = urlsplit(host or "http://localhost")
    netloc = f"{parts.netloc}:{port}" if port else parts.netloc
    return urlunsplit((parts.scheme, netloc, parts.path.rstrip("/"), "", ""))


def pool_slots(client: httpx.Client, name: str) -> int | None:
    """Return how many slots a pool has, None if there is no such pool. Raises httpx.HTTPError."""
    answer = client.get(f"/api/v2/pools/{quote(name, safe='')}")
    if answer.status_code == _NOT_FOUND:
        return None
    return int(answer.raise_for_status().json()["slots"])


def airflow_api(url: str, user: str | None, password: str | None) -> httpx.Client:
    """Log in to the Airflow at `url`, and return a client whose paths begin with /api/v2. Raises httpx.HTTPError."""
    login = {"username": user, "password": password}
    answer = httpx.post(f"{url}/auth/token", json=login, timeout=_TIMEOUT).raise_for_status()
    token = answer.json()["access_token"]
    return httpx.Client(
        base_url=url,
        timeout=_TIMEOUT,
        headers={"Authorization": f"Bearer {token}"},
        # A connection that is kept between requests fails if the server was restarted in the meantime.
        limits=httpx.Limits(max_keepalive_connections=0),
    )
