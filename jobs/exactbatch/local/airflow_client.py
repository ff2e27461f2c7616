"""Ask an Airflow through its REST API, for the commands, the demo and the tests."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

from exactbatch.local.airflow_parts import USER, ApiServer
from exactbatch.local.child_process import wait_until
from exactbatch.local.server import Progress, silent
from exactbatch.local.stack_error import LocalStackError
from exactbatch.operations.airflow_api import airflow_api

_DAG_TIMEOUT_S: Final = 180.0
_PAGE: Final = 100  # rows; Airflow's default settings return no more at once


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenFile:
    """A DAG file that Airflow could not import."""

    name: str  # its path below the folder of DAGs
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of a DAG. Its state is queued, running, success or failed."""

    run_id: str
    state: str


class AirflowClient:
    """A client of the Airflow of a stack, as its administrator."""

    user = USER

    def __init__(self, api_server: ApiServer) -> None:
        self._api_server = api_server
        self._api: httpx.Client | None = None

    @property
    def url(self) -> str:
        """The URL of Airflow's pages. Raises LocalStackError before the first start."""
        return self._api_server.address

    @property
    def port(self) -> int:
        """The port of Airflow's pages. Raises LocalStackError before the first start."""
        return self._api_server.port

    @property
    def password(self) -> str:
        """The password of `user`, which stays the same until the stack's data is deleted."""
        return self._api_server.password

    def request(self, method: str, path: str, **arguments: Any) -> Any:
        """Call Airflow's REST API, below /api/v2, and return its JSON answer. Raises httpx.HTTPError."""
        if self._api is None:
            self._api = airflow_api(self.url, self.user, self.password)
        answer = self._api.request(method, f"/api/v2{path}", **arguments).raise_for_status()
        return answer.json() if answer.content else None

    def dags(self) -> dict[str, bool]:
        """Return the IDs of all DAGs, and whether each of them is paused."""
        return {dag["dag_id"]: dag["is_paused"] for dag in self._all("/dags", "dags")}

    def broken_files(self) -> list[BrokenFile]:
        """Return the DAG files that Airflow could not import."""
        return [
            BrokenFile(name=each["filename"], traceback=each["stack_trace"])
            for each in self._all("/importErrors", "import_errors")
        ]

    def create_pools(self, slots: int) -> list[str]:
        """Create the pools that tasks name and that do not exist, and return their names."""
        existing = {pool["name"] for pool in self._all("/pools", "pools")}
        named = {
            task["pool"]
            for dag_id in self.dags()
            for task in self.request("GET", f"/dags/{dag_id}/tasks")["tasks"]
        }
        missing = sorted(named - existing - {None})
        for pool in missing:
            self.request("POST", "/pools", json={"name": pool, "slots": slots, "include_deferred": False})
        return missing

    def wait_for_dag(self, dag_id: str) -> None:
        """Wait until Airflow has parsed a DAG, and unpause it. Raises LocalStackError with any import error."""
        if not wait_until(lambda: self._unpause(dag_id), _DAG_TIMEOUT_S, every_s=0.5):
            raise LocalStackError(
                f"Airflow has found no DAG {dag_id!r} within {_DAG_TIMEOUT_S:.0f} s. It has the DAGs "
                f"{', '.join(sorted(self.dags())) or 'none'}."
            )

    def _unpause(self, dag_id: str) -> bool:
        """Unpause a DAG. Return False if Airflow does not know it yet. Raises LocalStackError for import errors."""
        try:
            self.request("PATCH", f"/dags/{dag_id}", json={"is_paused": False})
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.NOT_FOUND:
                raise
        else:
            return True
        if broken := self.broken_files():
            tracebacks = "\n".join(f"{each.name}: {each.traceback}" for each in broken)
            raise LocalStackError(
                f"Airflow has no DAG {dag_id!r}, and could not import these files:\n{tracebacks}"
            )
        return False

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run, and return its run_id."""
        body = {"logical_date": None, "conf": dict(conf or {})}
        run_id: str = self.request("POST", f"/dags/{dag_id}/dagRuns", json=body)["dag_run_id"]
        return run_id

    def runs(self, dag_id: str) -> list[Run]:
        """Return the newest runs of a DAG, oldest first; none for a DAG that does not exist."""
        try:
            newest = self.request("GET", f"/dags/{dag_id}/dagRuns", params={"order_by": "-id"})["dag_runs"]
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.NOT_FOUND:
                raise
            return []
        return [Run(run_id=run["dag_run_id"], state=run["state"]) for run in reversed(newest)]

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a run: queued, running, success or failed."""
        state: str = self.request("GET", f"/dags/{dag_id}/dagRuns/{run_id}")["state"]
        return state

    def task_states(self, dag_id: str, run_id: str) -> dict[str, tuple[str | None, int]]:
        """Return the state and the number of tries of each task."""
        tasks = self.request("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {task["task_id"]: (task["state"], task["try_number"]) for task in tasks}

    def last_error(self, dag_id: str, run_id: str, task_id: str, attempt: int) -> str | None:
        """Return the last error in the log of a task's attempt; None if it logged none."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{attempt}"
        answer = self.request(
            "GET", path, params={"full_content": True}, headers={"Accept": "application/json"}
        )
        for line in reversed(answer["content"]):
            if isinstance(line, dict) and line.get("level") in ("error", "critical"):
                raised = line.get("error_detail") or []
                return f"{raised[0]['exc_type']}: {raised[0]['exc_value']}" if raised else str(line["event"])
        return None

    def wait_for_run(
        self, dag_id: str, run_id: str, *, timeout_s: float = 600, progress: Progress = silent
    ) -> str:
        """Wait until a run has ended, and return its state. Raises LocalStackError if it does not end in time."""
        shown = ""

        def has_ended() -> bool:
            nonlocal shown
            state = self.run_state(dag_id, run_id)
            tasks = self.task_states(dag_id, run_id)
            text = ", ".join(f"{task} {state or 'waiting'}" for task, (state, _) in tasks.items())
            if text != shown:
                shown = text
                progress(f"{run_id}: {text}")
            return state in ("success", "failed")

        if not wait_until(has_ended, timeout_s, every_s=0.5):
            raise LocalStackError(
                f"the run {run_id} of the DAG {dag_id} has not ended within {timeout_s:.0f} s; its tasks: {shown}"
            )
        return self.run_state(dag_id, run_id)

    def _all(self, path: str, name: str) -> Iterator[dict[str, Any]]:
        """Yield all rows of a list, page by page."""
        offset = 0
        while rows := self.request("GET", path, params={"limit": _PAGE, "offset": offset})[name]:
            yield from rows
            offset += len(rows)
