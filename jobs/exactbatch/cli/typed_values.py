"""Values that somebody types for options: one in a wrong form is wrong usage, and no error of a pipeline."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

import typer

from exactbatch.errors import ConfigurationError, WrongUsage
from exactbatch.planning.request import parse_time
from exactbatch.time_text import parse_duration

Keep = Annotated[
    str | None,
    typer.Option(metavar="AGE", help='Like --before, but this long ago, such as "30 days" or "12 hours".'),
]
AvailableOnly = Annotated[
    bool,
    typer.Option(
        "--available-only", help="Replay only offsets that neither retention nor `compact` has removed."
    ),
]


@contextmanager
def typed() -> Iterator[None]:
    """Raise WrongUsage instead of ConfigurationError."""
    try:
        yield
    except ConfigurationError as error:
        raise WrongUsage(str(error)) from None


def parse_cutoff(before: str | None, keep: str | None, *, everything: bool) -> datetime | None:
    """Return the time that --before or --keep stands for, in UTC, and None for --all.

    Raises WrongUsage unless exactly one of them is given, in the right form.
    """
    options = (("--before", before), ("--keep", keep), ("--all", everything))
    given = [name for name, value in options if value]
    if len(given) != 1:
        raise WrongUsage(
            f"expected one of --before, --keep and --all, found {' and '.join(given) or 'none of them'}"
        )
    with typed():
        if before:
            return parse_time(before, "--before")
        return datetime.now(UTC) - parse_duration(keep, what="--keep") if keep else None
