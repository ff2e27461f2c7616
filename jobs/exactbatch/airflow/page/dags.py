"""Find the DAGs of pipelines, and what the page needs to know of them, in Airflow's database.

The API server does not import DAG files, which may be in bundles that it has no access to, and runs no code of their
authors. Airflow stores each DAG in serialized form, with the templated fields of its tasks. Among those of
pipeline_dag's operators are the IDs of the connections, whether a compacted topic can be replayed, and the address of
Spark's history server.

Many tables share one DAG: their members are pipelines of their own.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from airflow.models.dag import DagModel, DagTag
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select

from exactbatch.airflow.connections import is_web_address
from exactbatch.ledger import Ledger
from exactbatch.postgres.connection import Connection, transaction

_TAG: Final = "exactbatch"
_TASK: Final = "process_batch"


@dataclass(frozen=True, slots=True)
class PipelineDag:
    """A pipeline's DAG, whose ID is the pipeline's name, or the DAG of many tables.

    kafka, postgres    the IDs of its connections
    replays_compacted  Pipeline.replays_compacted
    spark_history_url      the address of Spark's history server, if any
    is_tables          whether many tables share its tasks
    member             the name of a pipeline that is not the DAG's own: one of many tables, or one in a task group
    """

    dag_id: str
    is_paused: bool
    kafka: str
    postgres: str
    replays_compacted: bool
    spark_history_url: str | None
    is_tables: bool = False
    member: str = ""

    @property
    def pipeline(self) -> str:
        """The name of the pipeline."""
        return self.member or self.dag_id


@dataclass(frozen=True, slots=True)
class TaskTime:
    """One task instance: its ID, state, number of tries, and the seconds of its last try."""

    task_id: str
    state: str | None
    tries: int
    seconds: float | None


class _Stored(NamedTuple):
    """The fields of a PipelineDag that Airflow stores with the DAG."""

    kafka: str
    postgres: str
    replays_compacted: bool
    spark_history_url: str | None
    is_tables: bool
    member: str


class PipelineDags:
    """The DAGs of pipelines. A serialized DAG is read again only when it has changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By dag_id, the newest hash and what is stored of each pipeline. A DAG may have the tag, but no pipeline.
        self._known: dict[str, tuple[str, list[_Stored]]] = {}

    def find(self, readable: Iterable[str]) -> list[PipelineDag]:
        """Return those pipelines' DAGs that are among the readable ones, by ID."""
        wanted = set(readable)
        with create_session(scoped=False) as session:
            models = self._models(session)
            paused = {
                row.dag_id: row.is_paused for row in models if row.dag_id in wanted and not row.is_stale
            }
            stored = self._stored(session, list(paused))
        return [
            PipelineDag(dag_id, is_paused, *each)
            for dag_id, is_paused in paused.items()
            for each in stored.get(dag_id, ())
        ]

    def owners(self) -> dict[str, bool]:
        """Return the name of each pipeline, or of many tables, and whether it is the latter; also what nobody may read.

        Stale DAGs are among them: a DAG whose file cannot be read for a while keeps the names of its pipelines.
        """
        with create_session(scoped=False) as session:
            dag_ids = [row.dag_id for row in self._models(session)]
            stored = self._stored(session, dag_ids)
        return dict.fromkeys(dag_ids, False) | {
            each.member or dag_id: each.is_tables for dag_id in dag_ids for each in stored.get(dag_id, ())
        }

    def _models(self, session: Any) -> Sequence[Any]:
        models: Sequence[Any] = session.execute(
            select(DagModel.dag_id, DagModel.is_paused, DagModel.is_stale)
            .join(DagTag, DagTag.dag_id == DagModel.dag_id)
            .where(DagTag.name == _TAG)
            .order_by(DagModel.dag_id)
        ).all()
        with self._lock:
            for gone in self._known.keys() - {row.dag_id for row in models}:
                del self._known[gone]
        return models

    def _stored(self, session: Any, dag_ids: Sequence[str]) -> dict[str, list[_Stored]]:
        hashes = dict[str, str]()
        newest = (
            select(SerializedDagModel.dag_id, SerializedDagModel.dag_hash)
            .where(SerializedDagModel.dag_id.in_(dag_ids))
            .order_by(SerializedDagModel.created_at)
        )
        for row in session.execute(newest):
            hashes[row.dag_id] = row.dag_hash  # the last one is the newest
        with self._lock:
            found = {
                dag_id: known[1]
                for dag_id, dag_hash in hashes.items()
                if (known := self._known.get(dag_id)) is not None and known[0] == dag_hash
            }
        unknown = [dag_id for dag_id in hashes if dag_id not in found]
        read = {
            serialized.dag_id: stored_in(serialized.data or {})
            for serialized in (
                SerializedDagModel.get_latest_serialized_dags(dag_ids=unknown, session=session)
                if unknown
                else ()
            )
        }
        with self._lock:
            self._known.update({dag_id: (hashes[dag_id], each) for dag_id, each in read.items()})
        return found | read


def read_task_times(dag_id: str, run_ids: Sequence[str]) -> dict[str, list[TaskTime]]:
    """Return the task instances of runs that have begun, by run ID, in the order in which they began."""
    columns = (
        TaskInstance.run_id,
        TaskInstance.task_id,
        TaskInstance.state,
        TaskInstance.try_number,
        TaskInstance.duration,
        TaskInstance.start_date,
    )
    times: dict[str, list[TaskTime]] = {}
    if not run_ids:
        return times
    with create_session(scoped=False) as session:
        rows = session.execute(
            select(*columns)
            .where(TaskInstance.dag_id == dag_id, TaskInstance.run_id.in_(run_ids))
            .where(TaskInstance.start_date.is_not(None))
            .order_by(TaskInstance.start_date)
        ).all()
    for row in rows:
        if row.state != "skipped":
            times.setdefault(row.run_id, []).append(
                TaskTime(row.task_id, row.state, row.try_number, row.duration)
            )
    return times


def stored_in(data: dict[str, Any]) -> list[_Stored]:
    """Return what the page needs of each pipeline in a serialized DAG."""
    found = []
    for task in _tasks(data):
        kafka, postgres = task.get("kafka_conn_id"), task.get("postgres_conn_id")
        is_processing = str(task.get("task_id")).rpartition(".")[2] == _TASK
        if is_processing and isinstance(kafka, str) and isinstance(postgres, str):
            history = task.get("spark_history_url")
            is_address = isinstance(history, str) and is_web_address(history)
            # Airflow leaves out what equals the default.
            found.append(
                _Stored(
                    kafka,
                    postgres,
                    task.get("replays_compacted") is True,
                    history if is_address else None,
                    isinstance(task.get("tables"), str),
                    str(task.get("member") or ""),
                )
            )
    return found


def _tasks(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for task in data.get("dag", {}).get("tasks", ()):
        yield task.get("__var", task)


def with_members(
    connection: Connection, dags: Sequence[PipelineDag], owners: Mapping[str, bool]
) -> list[PipelineDag]:
    """Return the DAGs with, in the place of each DAG of many tables, one entry for each registered member.

    A DAG of many tables stays if none of them is registered. `owners` are the names of all pipelines
    and tables with a DAG, shown or not, and whether each stands for many tables: what another DAG runs is no member.
    """
    if not any(dag.is_tables for dag in dags):
        return list(dags)
    with transaction(connection):
        names = [each.name for each in Ledger(connection).registry.read_all()]
    found = []
    for dag in dags:
        members = [name for name in names if dag.is_tables and _find_owner(name, owners) == dag.pipeline]
        found += [replace(dag, member=name) for name in members] or [dag]
    return found


def _find_owner(name: str, owners: Mapping[str, bool]) -> str:
    """Return the owner of a pipeline: itself, or the tables with the longest prefix of its name; "" for none."""
    if name in owners:
        return name
    prefix = name.rpartition(".")[0]
    while prefix and not owners.get(prefix):
        prefix = prefix.rpartition(".")[0]
    return prefix
