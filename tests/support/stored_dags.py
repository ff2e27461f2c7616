"""DAGs as Airflow has stored them, without its database."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

import pytest
from airflow.models.serialized_dag import SerializedDagModel

from exactbatch.airflow.page import dags

TASK: Final = {
    "task_id": "process_batch",
    "kafka_conn_id": "k",
    "postgres_conn_id": "p",
    "replays_compacted": True,
}
TABLES_TASK: Final = {**TASK, "tables": "module:tables"}


def store_dags(
    monkeypatch: pytest.MonkeyPatch,
    hashes: Mapping[str, str],
    *,
    tables: Collection[str] = (),
    stale: Collection[str] = (),
) -> list[list[str]]:
    """Let Airflow have DAGs of pipelines, with their hashes; return a list to which each reading adds what it reads.

    `tables` are those of many tables, `stale` are those whose files are gone.
    """
    reads: list[list[str]] = []

    @contextmanager
    def create_session(**_: Any) -> Iterator[Any]:
        models = [
            SimpleNamespace(dag_id=each, is_paused=False, is_stale=each in stale) for each in sorted(hashes)
        ]
        # The first statement asks for the models, the second one for the hashes.
        answers = iter(
            (
                SimpleNamespace(all=lambda: models),
                [SimpleNamespace(dag_id=dag_id, dag_hash=dag_hash) for dag_id, dag_hash in hashes.items()],
            )
        )
        yield SimpleNamespace(execute=lambda _: next(answers))

    def read(*, dag_ids: Collection[str], **_: Any) -> list[Any]:
        reads.append(sorted(dag_ids))
        return [
            SimpleNamespace(
                dag_id=each,
                data={"dag": {"tasks": [{"__var": TABLES_TASK if each in tables else TASK}]}},
            )
            for each in dag_ids
        ]

    monkeypatch.setattr(dags, "create_session", create_session)
    monkeypatch.setattr(SerializedDagModel, "get_latest_serialized_dags", read)
    return reads
