"""What docs/howto/retire-rename.md says: a pipeline goes, and the others stay exact."""

import re
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from exactbatch import Append
from exactbatch.errors import ConfigurationError, NotRegistered, StatementRefused
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.local.postgres import executables
from exactbatch.operations.prune import prune_history
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.postgres.connection import transaction
from support.audited_target import AuditedTarget
from support.environment import DOCS
from support.topics import Topic, record

PAGE = DOCS / "howto" / "retire-rename.md"


@pytest.fixture
def pair(connection, settings, make_topic, make_pipeline):
    """Two pipelines over one topic, each with a committed batch, a reject, a failure and a planned batch."""
    topic: Topic = make_topic()
    topic.produce(*map(record, range(10)))
    pair = []
    for name in ("leaves", "stays"):
        pipeline = make_pipeline(topic, name=name, sink=Append(f"public.{name}"), max_rejects=1)
        target = AuditedTarget(connection, settings, pipeline)
        target.load(rejects=(3,))
        pair.append(target)
    topic.produce(record(10))
    for target in pair:
        batch_id = freeze_advance(connection, KafkaBroker(settings.kafka), target.pipeline, origin="cli")
        with transaction(connection):
            ledger = Ledger(connection)
            ledger.batches.record_failure(ledger.batches.read(batch_id), ValueError("it failed"))
    return pair


def every_row(target: AuditedTarget, *, without: str = "") -> dict[str, list[Any]]:
    """Return all rows of all tables of the ledger, except those that name a pipeline."""
    with transaction(target.connection) as cursor:
        cursor.execute("select tablename from pg_tables where schemaname = 'exactbatch' order by 1")
        tables = [row[0] for row in cursor.fetchall()]
        rows = {}
        for table in tables:
            cursor.execute(f"select to_jsonb(t) from exactbatch.{table} t order by t::text")
            rows[table] = [
                row[0]
                for row in cursor.fetchall()
                if without not in (row[0].get("pipeline"), row[0].get("name"))
            ]
    return rows


def remove(database: str, name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the statements of the page."""
    [statements] = re.findall(r"^```sql\n(-- remove_pipeline\.sql.*?)^```", PAGE.read_text(), re.M | re.S)
    (folder / "remove_pipeline.sql").write_text(statements)
    options = ("-v", "ON_ERROR_STOP=1", "-v", f"pipeline={name}", "-f", str(folder / "remove_pipeline.sql"))
    return subprocess.run(
        [executables() / "psql", *options, database], capture_output=True, text=True, timeout=60
    )


def test_a_pipeline_is_removed_for_good_only_without_its_target(pair, database, tmp_path):
    leaves, stays = pair
    before, others = every_row(leaves), every_row(leaves, without="leaves")
    refused = remove(database, "leaves", tmp_path)
    assert refused.returncode == 3
    assert "the target public.leaves exists: drop or rename it first" in refused.stderr
    assert "there is no pipeline nobody" in remove(database, "nobody", tmp_path).stderr
    assert every_row(leaves) == before
    leaves.execute("drop table public.leaves")
    done = remove(database, "leaves", tmp_path)
    assert done.returncode == 0, done.stderr
    after = every_row(leaves)
    of_batches = ("batch_range", "batch_failure")
    for table in set(after) - set(of_batches):
        assert after[table] == others[table], table
    kept = {row["batch_id"] for row in after["batch"]}
    for table in of_batches:
        assert after[table] == [row for row in before[table] if row["batch_id"] in kept]
    assert {row["pipeline"] for row in after["batch"]} == {"stays"}
    # The past is protected again, and the other pipeline goes on.
    with pytest.raises(StatementRefused, match="can not be changed any more"):
        stays.execute("delete from exactbatch.batch where status = 'committed'")
    with transaction(stays.connection), pytest.raises(NotRegistered):
        Ledger(stays.connection).registry.check(leaves.pipeline)
    stays.load()
    assert stays.audit().is_exact


def test_a_retired_pipeline_proves_its_target_and_keeps_others_from_loading_it_again(pair):
    leaves, _ = pair
    leaves.load()  # it finishes
    prune_history(leaves.connection, leaves.pipeline, before=datetime.now(UTC) + timedelta(hours=1))
    assert leaves.audit().is_exact
    again = replace(leaves.pipeline, name="again")
    with (
        transaction(leaves.connection),
        pytest.raises(ConfigurationError, match="'leaves' and 'again' both load"),
    ):
        Ledger(leaves.connection).registry.register(again)
