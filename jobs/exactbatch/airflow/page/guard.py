"""Guard every request to the page, and every answer: how many run at a time, and who may see and do what.

Airflow's own routes need threads, too. Airflow's auth manager decides:

| to | needs |
| see a pipeline | to read its DAG and the runs of the DAG |
| see reasons of rejects and messages of errors, which may quote values | to read the task logs of the DAG |
| preview a replay | to trigger the DAG |
| see the contents of rejected records | to edit the DAG |
"""

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from typing import Annotated, Any, Final

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.batch_apis import IsAuthorizedDagRequest
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, get_user, requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from exactbatch.airflow.page.airflow_versions import read_dag_details
from exactbatch.errors import ExactbatchError
from exactbatch.planning.request import shown

_HEADERS: Final = {
    # Only files of this page run and are shown; only pages of the same Airflow embed it.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_BODY: Final = 100_000  # bytes; 100 ranges with the longest names of topics need half of them
_SHOWN: Final = 3  # mistakes of a request in one answer
# All routes of the API server that may block share 40 threads, also those that running tasks ask.
_AT_ONCE: Final = 4
_WAIT: Final = 2.0  # seconds for which a request waits for its turn, without a thread
_AGAIN: Final = "2"  # seconds after which a request that got no turn is to come again
_TIME: Final = 15.0  # seconds from its turn after which a request begins no statement and waits for none
_TRUSTED_SITES: Final = ("same-origin",)
User = GetUserDep
SignedIn = Depends(get_user)
MaySee = Depends(requires_access_dag("GET", DagAccessEntity.RUN))
MayReadLogs = Depends(requires_access_dag("GET", DagAccessEntity.TASK_LOGS))
MayTrigger = Depends(requires_access_dag("POST", DagAccessEntity.RUN))
MayEdit = Depends(requires_access_dag("PUT"))


class GuardedApp(FastAPI):
    """An application whose answers all have the headers, also those to failures, and which refuses hostile requests."""

    def build_middleware_stack(self) -> ASGIApp:
        """Guard the whole stack, with the part that answers 500."""
        self.add_exception_handler(ExactbatchError, _refuse)
        self.add_exception_handler(RequestValidationError, _refuse_values)
        return _Guard(super().build_middleware_stack())


class _Guard:
    """Adds the headers, and limits what a request may send."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        size = 0

        async def receive_limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > _BODY:
                raise HTTPException(413, f"expected at most {_BODY:,} bytes in a request, found more")
            return message

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        app = self._app
        if scope["type"] == "http" and ("\0" in scope["path"] or b"%00" in scope["query_string"]):
            app = refusal(
                422,
                "Refused",
                "the address contains the character U+0000, which no name can contain. Remove it.",
            )
        await app(scope, receive_limited, send_guarded)


def refusal(status: int, name: str, message: str) -> JSONResponse:
    """Return an answer that says why a request is refused, in UTF-8 whatever the message quotes."""
    text = message.encode("utf-8", "backslashreplace").decode()
    return JSONResponse({"error": name, "message": text}, status_code=status)


async def _refuse(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001
    return refusal(409, type(error).__name__, str(error))


async def _refuse_values(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001
    assert isinstance(error, RequestValidationError)
    mistakes = [
        f"{'.'.join(map(str, each['loc']))}: {each['msg']}, found {shown(each['input'])}"
        for each in error.errors()[:_SHOWN]
    ]
    return refusal(422, "Refused", "; ".join(mistakes))


class Room:
    """A dependency of the routes that need threads: waits for a turn, and returns the end of the request's time.

    The end is one of the monotonic clock. Raises an HTTP error 503 if no turn comes.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def __call__(self) -> AsyncIterator[float]:
        """Hold a turn while a request is answered."""
        try:
            await asyncio.wait_for(self._free.acquire(), _WAIT)
        except TimeoutError:
            raise HTTPException(
                503,
                f"The page is already answering {_AT_ONCE} requests, its maximum. Try again in a few seconds.",
                {"Retry-After": _AGAIN},
            ) from None
        try:
            yield time.monotonic() + _TIME
        finally:
            self._free.release()


def readable_dags(user: Any) -> set[str]:
    """Return the IDs of the DAGs that a user may read, among them those whose runs the user may not read."""
    return set(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))


def with_readable_runs(user: Any, dag_ids: Collection[str]) -> set[str]:
    """Return the DAGs whose runs a user may read: what the routes of one pipeline need, too.

    One call covers all DAGs, because some auth managers answer over the network. Only if it is refused is each DAG
    checked by itself.
    """
    requests: dict[str, IsAuthorizedDagRequest] = {
        dag_id: {
            "method": "GET",
            "access_entity": DagAccessEntity.RUN,
            "details": details,
        }
        for dag_id, details in read_dag_details(dag_ids).items()
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
    details = read_dag_details([dag_id])[dag_id]

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
