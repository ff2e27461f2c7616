"""Progress of long commands: what is done, the rate and the time left, on a terminal only."""

import io
import re
import threading
import time
from typing import Any

import psycopg2
import pytest
from rich.console import Console

from exactbatch.cli import progress
from exactbatch.ledger import Ledger
from exactbatch.operations.batch_history import accounted_offsets, staged_records
from exactbatch.postgres.connection import transaction
from support.topics import record


@pytest.fixture
def terminal(monkeypatch):
    """Replace stderr by a terminal whose text can be read."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    monkeypatch.setattr(progress, "err", console)
    return console.file


def test_a_bar_has_a_rate_and_the_time_left(terminal):
    with progress.counting("Comparing offsets") as update:
        for done in (0, 250, 500):
            update(done, 1000)
            time.sleep(0.3)
    shown = terminal.getvalue()
    assert "500/1000" in shown
    assert re.search(r"\d/s", shown), shown
    assert re.search(r"0:00:0\d 0:00:0\d", shown), shown


def test_nothing_is_shown_without_a_terminal(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(progress, "err", Console(file=written, force_terminal=False))
    with progress.counting("x") as update:
        update(1, 2)
    with progress.waiting("y"):
        pass
    assert written.getvalue().strip() == ""


class _Slow:
    """Rows for a COPY that sends most of them, and then waits."""

    def __init__(self, rows: int) -> None:
        self.data = io.BytesIO(b"".join(b"%d\n" % n for n in range(rows)))
        self.sent, self.go_on = threading.Event(), threading.Event()

    def read(self, size: int) -> bytes:
        if not (part := self.data.read(size)):
            self.sent.set()
            self.go_on.wait(60)
        return part


def test_staged_records_are_counted_while_they_are_copied(connection, database):
    with transaction(connection) as cursor:
        for name in ("batch_7_ab_rows", "batch_7_ab_rejects", "batch_77_ab_rows"):
            cursor.execute(f"create unlogged table exactbatch_staging.{name} (n int)")
        cursor.execute("insert into exactbatch_staging.batch_77_ab_rows select generate_series(1, 9)")
    assert staged_records(connection, 7) == 0
    slow = _Slow(200_000)
    other = psycopg2.connect(database)
    copying = threading.Thread(
        target=lambda: other.cursor().copy_expert("copy exactbatch_staging.batch_7_ab_rows from stdin", slow)
    )
    copying.start()
    assert slow.sent.wait(60)
    assert _until(lambda: staged_records(connection, 7) > 100_000)
    slow.go_on.set()
    copying.join(60)
    other.commit()
    other.close()  # a session reports its statistics when it ends, or after a second
    assert _until(lambda: staged_records(connection, 7) == 200_000)


def test_a_batch_is_followed_from_another_connection(
    terminal, world, make_topic, make_pipeline, settings, monkeypatch
):
    monkeypatch.setattr(progress, "_EVERY", 0.02)
    topic = make_topic()
    topic.produce(*map(record, range(500)))
    pipeline = make_pipeline(topic)
    batch_id = world.plan(pipeline)
    with transaction(world.connection):
        batch = Ledger(world.connection).batches.read(batch_id)
    assert accounted_offsets(world.connection, batch_id) == 500
    seen: list[tuple[int, int]] = []
    with progress.following(batch, settings, lambda done, total: seen.append((done, total))):
        world.process(pipeline, batch_id)
    assert {total for _, total in seen} == {500}  # and it was asked at least once
    assert all(0 <= done <= 500 for done, _ in seen)


def test_a_lost_ledger_does_not_fail_the_batch(terminal, world, make_topic, make_pipeline, settings):
    topic = make_topic()
    topic.produce(record(1))
    pipeline = make_pipeline(topic)
    batch_id = world.plan(pipeline)
    with transaction(world.connection):
        batch = Ledger(world.connection).batches.read(batch_id)
    unreachable = type(settings)(kafka=settings.kafka, postgres="host=127.0.0.1 port=1")
    with progress.following(batch, unreachable, lambda *_: None):
        assert world.process(pipeline, batch_id).wrote


def _until(condition: Any) -> bool:
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
