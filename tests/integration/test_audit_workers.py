"""Several workers find what one finds: in threads of one process, and as tasks of a Spark job."""

import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from exactbatch import Custom
from exactbatch.audit import run_audit, unit_comparison, workers
from exactbatch.audit.audit_result import AuditReport
from exactbatch.audit.snapshot import Snapshot
from exactbatch.cli import audit as audit_command
from exactbatch.cli.app import app
from exactbatch.errors import ConfigurationError, ReadFailed
from exactbatch.settings import KAFKA, POSTGRES
from support.audited_target import COUNT, AuditedTarget, findings
from support.topics import record


@pytest.fixture
def damaged(connection, settings, make_topic, make_pipeline) -> AuditedTarget:
    """Three partitions of two topics, with damage at the ends of the slices that two workers compare."""
    first, second = make_topic(2), make_topic()
    for topic, partition in ((first, 0), (first, 1), (second, 0)):
        topic.produce(*map(record, range(40)), partition=partition)
    pipeline = make_pipeline(first, topics=(first.name, second.name))
    target = AuditedTarget(connection, settings, pipeline)
    target.load()
    assert findings(target.audit()) == {}
    target.execute("delete from {t} where kafka_partition = 0 and kafka_offset in (0, 19, 39)")
    target.execute("insert into {t} select * from {t} where kafka_partition = 1 and kafka_offset in (20, 21)")
    target.execute("update {t} set name = 'y' where kafka_partition = 1 and kafka_offset in (0, 39)")
    return target


def in_parts(monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    monkeypatch.setattr(run_audit, "local_workers", lambda _: parts)
    monkeypatch.setattr(run_audit, "spark_parts", lambda *_: parts)
    monkeypatch.setattr(run_audit, "_WINDOW", 7)


@pytest.mark.parametrize("values", [False, True], ids=["offsets", "values"])
def test_threads_and_tasks_find_what_one_worker_finds(damaged, monkeypatch, spark, values):
    reports: dict[str, AuditReport] = {}
    for name, parts, session in (("one", 1, None), ("threads", 5, None), ("tasks", 5, spark)):
        with monkeypatch.context() as patch:
            in_parts(patch, parts)
            steps: list[int] = []
            reports[name] = run_audit.audit(
                damaged.pipeline,
                damaged.settings,
                values=values,
                spark=session,
                progress=lambda done, _all: steps.append(done),  # noqa: B023 - called in this turn
            )
            assert steps[-1] == 120
            assert steps == sorted(steps)
    assert reports["one"] == reports["threads"] == reports["tasks"]
    found = {kind for kind, count in reports["one"].findings.items() if count}
    assert found == {"missing", "duplicated", *COUNT, *(["changed"] if values else [])}


def test_workers_see_the_snapshot_of_the_audit(damaged, monkeypatch):
    """A batch commits between the snapshot and the first worker."""
    before = damaged.audit()
    in_parts(monkeypatch, 3)
    export = Snapshot.export

    def commit(self: Snapshot) -> str:
        name = export(self)
        damaged.execute("delete from {t} where kafka_offset = 5")
        return name

    monkeypatch.setattr(Snapshot, "export", commit)
    assert run_audit.audit(damaged.pipeline, damaged.settings) == before


def test_the_first_error_of_a_thread_ends_the_audit(damaged, monkeypatch):
    in_parts(monkeypatch, 3)

    def fail(*_: object) -> Iterator[Any]:
        raise ReadFailed("cannot be read")

    monkeypatch.setattr(unit_comparison.LogWindows, "window", fail)
    with pytest.raises(ReadFailed, match="cannot be read"):
        run_audit.audit(damaged.pipeline, damaged.settings)


def test_an_executor_that_ends_is_replaced(
    connection, settings, make_topic, make_pipeline, monkeypatch, spark, tmp_path
):
    """A worker ends without a word while it decodes; Spark gives its unit to another one, in the same snapshot."""
    died, fatal = tmp_path / "died", tmp_path / "fatal"

    def decode(values: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        if fatal.exists() and not died.exists():
            died.touch()
            os._exit(9)
        rows = [json.loads(value) for value in values.column("value").to_pylist()]
        columns = [pa.array([row[name] for row in rows]) for name in ("id", "name")]
        return (
            pa.RecordBatch.from_arrays(
                [values.column("value_index"), columns[0].cast(pa.int32()), columns[1]],
                ["value_index", "id", "name"],
            ),
            {},
        )

    topic = make_topic(3)
    for partition in range(3):
        topic.produce(*map(record, range(20)), partition=partition)
    target = AuditedTarget(
        connection, settings, make_pipeline(topic, value=Custom(decode, "id int, name text"))
    )
    target.load()
    target.execute("update {t} set kafka_timestamp = null, id = 77 where kafka_offset = 9")
    in_parts(monkeypatch, 3)
    expected = run_audit.audit(target.pipeline, target.settings, values=True)
    assert expected.findings["changed"] == 60  # nothing has loaded Kafka's time
    fatal.touch()
    assert run_audit.audit(target.pipeline, target.settings, values=True, spark=spark) == expected
    assert died.exists()


def test_executors_with_other_code_audit_nothing(damaged, monkeypatch, spark):
    monkeypatch.setattr(workers, "code_identity", lambda: "99.0 (0)")
    in_parts(monkeypatch, 3)
    with pytest.raises(ConfigurationError, match=r"and the driver 99\.0 \(0\)"):
        run_audit.audit(damaged.pipeline, damaged.settings, values=True, spark=spark)


def test_the_command_audits_with_spark(damaged, monkeypatch, spark):
    """With --master it prints the same report as without."""
    monkeypatch.setenv(KAFKA, json.dumps(dict(damaged.settings.kafka)))
    monkeypatch.setenv(POSTGRES, damaged.settings.postgres)
    monkeypatch.setattr(audit_command, "load_any", lambda _: (damaged.pipeline, damaged.settings))
    monkeypatch.setattr(
        "exactbatch.batch.spark.spark_session.spark_session", lambda *_, **__: nullcontext(spark)
    )
    in_parts(monkeypatch, 3)
    here, there = (
        CliRunner().invoke(app, ["audit", "p", "--json", *master])
        for master in ((), ("--master", "local[2]"))
    )
    assert here.exit_code == there.exit_code == 3, there.output
    assert json.loads(here.stdout) == json.loads(there.stdout)
    assert json.loads(here.stdout)["partitions"] == [asdict(each) for each in damaged.audit().partitions]
