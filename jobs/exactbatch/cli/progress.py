"""Progress of what may take longer than three seconds: how much is done, the rate, and the time left."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from exactbatch.cli.console import err
from exactbatch.errors import ExactbatchError
from exactbatch.ledger import Batch
from exactbatch.operations.batch_history import accounted_offsets, progress_session, staged_records
from exactbatch.settings import Settings

Update = Callable[[int, int | None], None]
_EVERY: Final = 1.0  # seconds between two looks at a batch


@contextmanager
def counting(text: str) -> Iterator[Update]:
    """Show a bar with rate and time left on a terminal; the block calls update(done, total)."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        bar = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show how long a step takes that reports nothing before its end, such as one statement of Postgres."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        progress.add_task(text, total=None)
        yield


@contextmanager
def following(batch: Batch, settings: Settings, update: Update) -> Iterator[None]:
    """Report how many records of a batch are staged or committed while the block processes it.

    Only on a terminal. It asks Postgres each second, over a connection of its own, and gives up if that fails.
    """
    if not err.is_terminal:
        yield
        return
    ended = threading.Event()

    def follow() -> None:
        try:
            with progress_session(settings.postgres) as connection:
                total = accounted_offsets(connection, batch.batch_id)
                while not ended.wait(_EVERY):
                    update(min(staged_records(connection, batch.batch_id), total), total)
        except ExactbatchError:
            return  # the batch itself reports what is wrong

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(2 * _EVERY)


class _Rate(ProgressColumn):
    """The number of units per second."""

    def render(self, task: Task) -> Text:
        """Show the current rate; nothing before there is one."""
        speed = task.finished_speed or task.speed
        shown = "" if speed is None else f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.1f}/s"
        return Text(shown, style="progress.data.speed")
