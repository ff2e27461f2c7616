"""A Spark Connect server, and the batches of one test on it."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from exactbatch import Pipeline
from exactbatch.batch.engines.connect_engine import ConnectEngine
from exactbatch.batch.job import process_batch
from exactbatch.batch.publishing.publish import Published
from exactbatch.local.stack import Connect
from exactbatch.settings import Settings
from support.batch_runner import BatchRunner
from support.environment import HOME, JOBS, TESTS
from support.jvm import quick_spark
from support.stacks import new_stack


class ConnectRunner(BatchRunner):
    """Batches of one test, on a server."""

    def __init__(self, server: Connect, connection: Any, settings: Settings) -> None:
        super().__init__(None, connection, settings)
        self.engine = ConnectEngine(server.url)

    def process(self, pipeline: Pipeline, batch_id: int) -> Published:
        return process_batch(self.engine, pipeline, batch_id, self.settings)


@contextmanager
def run_connect_server(path: Sequence[Path] = (), conf: Mapping[str, str] | None = None) -> Iterator[Connect]:
    """Run a server with two slots, whose Python workers also find the modules in these folders."""
    stack = new_stack("connect")
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        **(conf or {}),
    }
    modules = os.pathsep.join(map(str, (JOBS, TESTS, *path)))
    with mock.patch.dict(os.environ, {"SPARK_SUBMIT_OPTS": quick_spark(HOME), "PYTHONPATH": modules}):
        stack.connect.configure({}, settings, anywhere=True)
        try:
            stack.connect.start()
            yield stack.connect
        finally:
            stack.down(delete=True)
