"""librdkafka's mock broker in a process of its own, so that what it holds is not taken for what a reader holds.

It creates topics when they are first named. It prints its address, and ends with its standard input.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer


@contextmanager
def mock_broker() -> Iterator[str]:
    """Run one; its address."""
    command = [sys.executable, __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def _run() -> None:
    mock = Producer({"bootstrap.servers": "-", "test.mock.num.brokers": 1, "log_level": 0})
    [broker] = mock.list_topics(timeout=10).brokers.values()
    sys.stdout.write(f"{broker.host}:{broker.port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    _run()
