"""Airflow's API server alone, with the Pipelines page, the stored DAGs of some pipelines, and a user of each role."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from exactbatch import Append, Json, Pipeline
from exactbatch.local import LocalStack
from exactbatch.local.airflow import LocalAirflow
from support.environment import JOBS, ROOT
from support.page_auth import session_of
from support.versioned_bundle import with_versioned_bundle

ROLES: Final = ("viewer", "user", "op", "admin")
_MODULE: Final = """
import datetime
from exactbatch import Append, Json, Limits, Pipeline, ToTopic, Tuning
pipelines = {pipelines!r}
"""
_NAMED: Final = "{name} = next(each for each in pipelines if each.name == {name!r})\n"
_DAG: Final = """
from exactbatch.airflow import Connections, pipeline_dag
import pipelines_of_page as module
# Its Kafka does not answer.
connections = {"cut_off": Connections(kafka="kafka_cut_off")}
for name, each in list(vars(module).items()):
    if type(each).__name__ == "Pipeline":
        globals()["dag_" + name] = pipeline_dag(each, connections=connections.get(name, Connections()))
"""

# The DAG and the module of its pipeline are in a bundle whose folder has the name of its version.
BUNDLED: Final = Pipeline(
    name="bundled", topics=("bundled",), value=Json("id int"), sink=Append("public.bundled")
)
_BUNDLED_MODULE: Final = (
    f"from exactbatch import Append, Json, Limits, Pipeline, Tuning\nbundled = {BUNDLED!r}\n"
)
_BUNDLED_DAG: Final = """
from exactbatch.airflow import Connections, pipeline_dag
from shop.orders import bundled
dag = pipeline_dag(bundled, connections=Connections(spark_history_url="https://history.example.org/"))
"""


@contextmanager
def serving_airflow(
    stack: LocalStack,
    pipelines: Sequence[Pipeline],
    folder: Path,
    *,
    connections: Mapping[str, Mapping[str, Any]] | None = None,
    environment: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    path: str = "",
) -> Iterator[LocalAirflow]:
    """Serve Airflow's pages and API, without a scheduler: a run that is triggered stays queued.

    `files` are further ones, by their path below `folder`, from which modules are imported; DAGs are in `dags`.
    `path` is the path below which Airflow is. A second bundle has the DAG of one more pipeline.
    """
    (folder / "dags").mkdir(parents=True)
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    (folder / "plugins").symlink_to(ROOT / "plugins")
    (folder / "dags" / "of_page.py").write_text(_DAG)
    module = _MODULE.format(pipelines=list(pipelines))
    module += "".join(_NAMED.format(name=each.name) for each in pipelines)
    (folder / "pipelines_of_page.py").write_text(module)
    airflow = LocalAirflow(
        stack,
        folder / "dags",
        connections=connections,
        environment={
            "PYTHONPATH": os.pathsep.join([str(folder), str(JOBS)]),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{role}:{role}" for role in ROLES),
            **with_versioned_bundle(
                folder, {"shop/orders.py": _BUNDLED_MODULE, "dag_of_orders.py": _BUNDLED_DAG}
            ),
            **(environment or {}),
        },
        anywhere=True,
        path=path,
    )
    try:
        airflow.up(parts=["api-server"])
        if missing := {each.name for each in (*pipelines, BUNDLED)} - set(airflow.dags()):
            raise AssertionError(f"Airflow lacks the DAGs {missing}; its errors: {airflow.broken_files()}")
        yield airflow
    finally:
        airflow.down()


def client_of(airflow: LocalAirflow, role: str) -> httpx.Client:
    """A client with the session of a user of a role, as a browser has it after a login."""
    passwords = json.loads((airflow.home / "passwords.json").read_text())
    login = {"username": role, "password": passwords[role]}
    answer = httpx.post(f"{airflow.url}/auth/token", json=login, timeout=30).raise_for_status()
    return httpx.Client(base_url=airflow.url, timeout=30, **session_of(answer.json()["access_token"]))
