"""Who may see and do what on the page: Airflow's auth manager decides.

| to | needs |
| see a pipeline | to read its DAG and the runs of the DAG |
| see reasons of rejects and messages of errors, which may quote values | to read the task logs of the DAG |
| preview a replay | to trigger the DAG |
| see the contents of rejected records | to edit the DAG |
"""

from collections.abc import Collection
from typing import Annotated, Any, Final

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.batch_apis import IsAuthorizedDagRequest
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, get_user, requires_access_dag
from fastapi import Depends, HTTPException, Request

from exactbatch.airflow.page.airflow_versions import details_of_dags

_TRUSTED_SITES: Final = ("same-origin",)

User = GetUserDep
SignedIn = Depends(get_user)
MaySee = Depends(requires_access_dag("GET", DagAccessEntity.RUN))
MayReadLogs = Depends(requires_access_dag("GET", DagAccessEntity.TASK_LOGS))
MayTrigger = Depends(requires_access_dag("POST", DagAccessEntity.RUN))
MayEdit = Depends(requires_access_dag("PUT"))


def readable_dags(user: Any) -> set[str]:
    """Return the IDs of the DAGs that a user may read, among them those whose runs the user may not read."""
    return set(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))


def with_readable_runs(user: Any, dag_ids: Collection[str]) -> set[str]:
    """Return those of the DAGs whose runs a user may read: what the routes of one pipeline need, too.

    One call covers all DAGs, because some auth managers answer over the network. Only if it is refused is each DAG
    checked by itself.
    """
    requests: dict[str, IsAuthorizedDagRequest] = {
        dag_id: {
            "method": "GET",
            "access_entity": DagAccessEntity.RUN,
            "details": details,
        }
        for dag_id, details in details_of_dags(dag_ids).items()
    }
    manager = get_auth_manager()
    if manager.batch_is_authorized_dag(list(requests.values()), user=user):
        return set(dag_ids)
    return {
        dag_id
        for dag_id, request in requests.items()
        if manager.batch_is_authorized_dag([request], user=user)
    }


def allowed(user: Any, dag_id: str) -> dict[str, bool]:
    """Return what else a user who may see a pipeline may do with it."""
    details = details_of_dags([dag_id])[dag_id]

    def is_authorized(method: Any, entity: DagAccessEntity | None = None) -> bool:
        return get_auth_manager().is_authorized_dag(
            method=method, access_entity=entity, details=details, user=user
        )

    return {
        "read_logs": is_authorized("GET", DagAccessEntity.TASK_LOGS),
        "trigger": is_authorized("POST", DagAccessEntity.RUN),
        "see_records": is_authorized("PUT"),
    }


def check_same_origin(request: Request) -> None:
    """Raise an HTTP error 403 for a request that another site may have made the browser send.

    A browser says which site sends a request in Sec-Fetch-Site. Where it does not (http:// on another host than
    localhost), only a page of the same origin can set the header X-Exactbatch: other sites would need CORS. A form
    cannot send JSON.
    """
    site = request.headers.get("sec-fetch-site")
    is_ours = site in _TRUSTED_SITES if site is not None else "x-exactbatch" in request.headers
    if not is_ours or request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(403, "the request does not come from the page of this Airflow")


SameOrigin = Annotated[None, Depends(check_same_origin)]
