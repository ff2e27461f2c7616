"""Servers that die under a batch."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exactbatch import Append, Json, Pipeline
from exactbatch.ledger import Ledger, migrate
from exactbatch.local import LocalStack
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from support.environment import HOME
from support.faults.drivers import BatchLauncher, load
from support.topics import Topic
from support.waiting import wait_for


@pytest.fixture
def postgres() -> Iterator[Any]:
    """A Postgres of this test alone."""
    stack = LocalStack(HOME, name=f"test-{os.getpid()}-postgres")
    try:
        stack.postgres.configure({}, None)
        stack.postgres.start()
        yield stack.postgres
    finally:
        stack.down(delete=True)


def test_a_postgres_that_crashes_between_staging_and_publish_fails_the_batch_and_the_retry_is_exact(
    spark: Any, stack: LocalStack, postgres: Any, make_topic: Callable[..., Topic], tmp_path: Path
) -> None:
    """The crash empties the staging tables, which are UNLOGGED."""
    topic = make_topic(2)
    load(topic)
    pipeline = Pipeline(
        name=topic.name,
        topics=(topic.name,),
        value=Json("id int"),
        sink=Append(f"public.{topic.name}"),
        max_rejects=2,
        publish_timeout=10,
    )
    dsn = postgres.dsn
    connection = connect(dsn, application="tests")
    migrate(connection)
    with transaction(connection):
        Ledger(connection).register(pipeline)
    world = BatchLauncher(
        spark, connection, Settings(kafka=dict(stack.kafka_properties), postgres=dsn), tmp_path
    )
    batch_id = world.plan(pipeline)
    gate = tmp_path / "gate"
    driver = world.launch(pipeline, batch_id, f"job.after_stage=hold:{gate}")
    try:
        wait_for(Path(f"{gate}.held").exists, driver=driver)
        assert world.staged() == 30
        postgres.kill()
        postgres.start()
        gate.touch()
        assert driver.wait() == 1, driver.output
        driver.error_line("(PostgresUnavailable|StagedRowsDiffer)")
        world.connection = connect(postgres.dsn, application="tests")
        assert world.staged() == 0
        world.assert_nothing_written(pipeline, batch_id)
        assert world.retry(pipeline, batch_id).wrote
        world.assert_exact(pipeline, rows=30, rejected=2)
        with transaction(world.connection):
            assert Ledger(world.connection).staging_tables() == []
        world.connection.close()
    finally:
        driver.close()
