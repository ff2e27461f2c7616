"""The differences between versions of Airflow that concern the page: see exactbatch.airflow.versions."""

from collections.abc import Callable, Collection
from inspect import signature
from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from airflow.api_fastapi.core_api.security import get_user
from airflow.models.dag import DagModel
from fastapi import Depends


def browsers_send_session() -> bool:
    """Return whether a browser sends the session with each request, as a cookie: from Airflow 3.1 on.

    In 3.0 the scripts of its own pages keep a token, and send it in a header.
    """
    return "request" in signature(get_user).parameters


def depend_until_answered(dependency: Callable[..., Any]) -> Any:
    """Return FastAPI's dependency on a generator that ends before the answer is sent.

    FastAPI before 0.118, as Airflow 3.1 has it, always ends it then, and knows no scope. Airflow 3.0 may have 0.118 to
    0.120, which end it once the answer is read: there a slow reader keeps its turn.
    """
    if "scope" in signature(Depends).parameters:
        return Depends(dependency, scope="function")
    return Depends(dependency)


def read_dag_details(dag_ids: Collection[str]) -> dict[str, DagDetails]:
    """Return what an auth manager is asked about, by the ID of the DAG: the ID, and its team from Airflow 3.1 on.

    3.2 and later take one query for all DAGs, 3.1 takes one for each.
    """
    if not hasattr(DagDetails, "team_name"):
        return {dag_id: DagDetails(id=dag_id) for dag_id in dag_ids}
    if hasattr(DagModel, "get_dag_id_to_team_name_mapping"):
        teams = DagModel.get_dag_id_to_team_name_mapping(list(dag_ids))
    else:
        teams = {dag_id: DagModel.get_team_name(dag_id) for dag_id in dag_ids}
    return {dag_id: DagDetails(id=dag_id, team_name=teams.get(dag_id)) for dag_id in dag_ids}
