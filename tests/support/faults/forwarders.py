"""Forwarders of the matrix, which faults happen to, and what the topic must have after all of them."""

import json
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import psutil

from exactbatch import Pipeline
from exactbatch.errors import RetryableError
from exactbatch.forwarding import forward as forwarding
from exactbatch.forwarding import producer, sent
from exactbatch.forwarding.forward import forward_results
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Streams, ledger_session
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings
from support.commands import start_command
from support.forwarded import check_once_in_order, committed, latest_by_key, standing_rows
from support.reference import Row
from support.waiting import wait_for

KAFKA_TIMEOUT: Final = 5.0  # seconds, of a Kafka transaction and of each of its steps
_TRIES: Final = 4
_END: Final = 120.0  # seconds in which a forwarder ends


def send(pipeline: Pipeline, settings: Settings) -> int:
    """Send what waits, in this process; return how many results that is."""
    with (
        patch.object(producer, "TRANSACTION_TIMEOUT", KAFKA_TIMEOUT),
        patch.object(sent, "_PROGRESS_TIMEOUT", KAFKA_TIMEOUT),
        ledger_session(settings.postgres, "exactbatch forward", pipeline) as connection,
    ):
        return forward_results(connection, settings, pipeline).sent


def send_rest(pipeline: Pipeline, settings: Settings) -> None:
    """Send what waits. Servers that have just started may need more than one try."""
    for left in reversed(range(_TRIES)):
        try:
            send(pipeline, settings)
            return
        except RetryableError:
            if not left:
                raise


@contextmanager
def at_failpoints(failpoint: Callable[[str], None]) -> Iterator[None]:
    """Call this at the failpoints of forwarders of this process."""
    with patch.object(forwarding, "failpoint", failpoint), patch.object(producer, "failpoint", failpoint):
        yield


def outcome_of_process(
    pipeline: Pipeline, settings: Settings, folder: Path, failpoints: str, beside: Callable[[], None]
) -> str:
    """Run `exactbatch forward` with this action at a failpoint, and `beside` while it is stopped, if it is.

    Return "done", "killed", the name of its error, or the end of what it wrote.
    """
    process = start_command(settings, folder, "forward", pipeline, failpoints=failpoints)
    try:
        if failpoints.endswith("=stop"):
            found = psutil.Process(process.pid)
            ended = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
            wait_for(lambda: found.status() in ended, f"a forwarder at {failpoints}")
            beside()
            wait_for(
                lambda: _resumed_to_its_end(found), f"the end of a forwarder that was stopped at {failpoints}"
            )
        _, problems = process.communicate(timeout=_END)
    finally:
        process.kill()
    if process.returncode == -signal.SIGKILL:
        return "killed"
    if process.returncode == 0:
        return "done"
    named = re.search(r"error: (\w+): ", problems)
    return named[1] if named else problems[-300:]


def _resumed_to_its_end(process: psutil.Process) -> bool:
    """Resume a process that is stopped, again if the moment comes again; return whether it has ended."""
    status = process.status()
    if status == psutil.STATUS_STOPPED:
        process.resume()
    return bool(status == psutil.STATUS_ZOMBIE)


def check_results(connection: Any, pipeline: Pipeline, settings: Settings, expected: dict[Row, Row]) -> None:
    """Check that the topic has each committed result once, those of each key in order, and that they make the target.

    Raises AssertionError.
    """
    assert pipeline.forward is not None
    topic = pipeline.forward.topic
    with transaction(connection) as cursor:
        stream = Streams(connection).read(pipeline.name)
        cursor.execute("select count(*) from exactbatch.outbox")
        outbox: Any = cursor.fetchone()
    assert stream is not None
    assert (stream.unsent, stream.attempted_sequence, outbox[0]) == (0, None, 0), (stream, outbox)
    sent.wait_for_settled_partitions(KafkaBroker(settings.kafka), topic)
    messages = committed(settings.kafka, topic)
    check_once_in_order(messages, stream.last_sequence)
    if pipeline.traits.is_derived:
        by_key = {_key(key): _row(value) for key, value in latest_by_key(messages).items()}
        assert by_key == expected, "the topic, compacted, has other rows than the target"
    else:
        rows = Counter({_row(value): count for (_, value), count in standing_rows(messages).items()})
        assert rows == Counter(expected.values()), "the topic has other rows than the target"


def _key(key: bytes | None) -> Row:
    assert key is not None
    return tuple(json.loads(key).values())


def _row(value: bytes | None) -> Row:
    assert value is not None
    row = json.loads(value)
    return tuple({**row, "at": datetime.fromisoformat(row["at"]).astimezone(UTC)}.values())
