"""What differs between the versions of Airflow that exactbatch runs in, 3.0 to 3.3. No other module asks which it is.

A name is imported from where the newest version has it. Airflow 3.0 has no `external_views` of plugins: the page has no
menu entry and no tabs there, only its URL.
"""

from collections.abc import Callable, Collection
from inspect import signature
from typing import TYPE_CHECKING, Any

try:
    import airflow.sdk  # noqa: F401
except ModuleNotFoundError:
    from importlib.metadata import version

    raise ImportError(
        f"found Airflow {version('apache-airflow')}, expected 3.0 or newer. To run batches in Airflow 2, call "
        f"`exactbatch run` in a BashOperator: `exactbatch explain deploy` shows how."
    ) from None

try:
    from airflow.sdk.configuration import conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
    )
    from airflow.sdk.observability.stats import Stats
except ModuleNotFoundError:  # 3.0 and 3.1
    from airflow.configuration import conf
    from airflow.exceptions import (  # type: ignore[attr-defined,no-redef]
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
    )
    from airflow.stats import Stats

try:
    from airflow.sdk import CronDataIntervalTimetable
except ImportError:  # 3.0 and 3.1
    from airflow.timetables.interval import CronDataIntervalTimetable  # type: ignore[assignment]

try:
    from airflow.sdk import BaseHook
except ImportError:  # 3.0
    from airflow.hooks.base import BaseHook  # type: ignore[attr-defined,no-redef]

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSkipException",
    "BaseHook",
    "CronDataIntervalTimetable",
    "Stats",
    "browsers_send_session",
    "conf",
    "depend_until_answered",
    "details_of_dags",
]


def browsers_send_session() -> bool:
    """Return whether a browser sends the session with each request, as a cookie: from Airflow 3.1 on.

    In 3.0 the scripts of its own pages keep a token, and send it in a header.
    """
    from airflow.api_fastapi.core_api.security import get_user

    return "request" in signature(get_user).parameters


def depend_until_answered(dependency: Callable[..., Any]) -> Any:
    """Return FastAPI's dependency on a generator that ends before the answer is sent.

    FastAPI before 0.118, as Airflow 3.1 has it, always ends it then, and knows no scope. Airflow 3.0 may have 0.118 to
    0.120, which end it once the answer is read: there a slow reader keeps its turn.
    """
    from fastapi import Depends

    if "scope" in signature(Depends).parameters:
        return Depends(dependency, scope="function")
    return Depends(dependency)


def details_of_dags(dag_ids: Collection[str]) -> "dict[str, DagDetails]":
    """Return what an auth manager is asked about, by the ID of the DAG: the ID, and its team from Airflow 3.1 on.

    3.2 and later take one query for all DAGs, 3.1 takes one for each.
    """
    from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
    from airflow.models.dag import DagModel

    if not hasattr(DagDetails, "team_name"):
        return {dag_id: DagDetails(id=dag_id) for dag_id in dag_ids}
    if hasattr(DagModel, "get_dag_id_to_team_name_mapping"):
        teams = DagModel.get_dag_id_to_team_name_mapping(list(dag_ids))
    else:
        teams = {dag_id: DagModel.get_team_name(dag_id) for dag_id in dag_ids}
    return {dag_id: DagDetails(id=dag_id, team_name=teams.get(dag_id)) for dag_id in dag_ids}
