"""Airflow's REST API. It is not in exactbatch.airflow, because the local stack calls it without importing Airflow."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

_TIMEOUT = 60.0  # seconds for each request


def airflow_api(url: str, user: str | None, password: str | None) -> "httpx.Client":
    """Log in to the Airflow at `url`, and return a client whose paths begin with /api/v2. Raises httpx.HTTPError."""
    import httpx  # not at the top: a DAG file that is parsed does not need it

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
