"""Print the results of a command, ask questions, and report errors."""

import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Annotated, Any, ParamSpec

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from exactbatch.errors import ExactbatchError, WrongUsage
from exactbatch.errors.exit_status import exit_status
from exactbatch.errors.explanation import hint
from exactbatch.errors.printable import printable_lines
from exactbatch.errors.translation import translate_all_errors

P = ParamSpec("P")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


class Terminal(Console):
    """A console that shows escapes instead of the control characters of what it prints, such as values of records."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the parts of what is printed; styles and the cursor's moves are not a part's text."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)


# Results go to stdout; progress, questions and errors go to stderr, so that a pipe gets results only.
out = Terminal(highlight=False, soft_wrap=True)
err = Terminal(highlight=False, soft_wrap=True, stderr=True)


def with_exit_status(command: Callable[P, None]) -> Callable[P, None]:
    """Make a command print one message for an error, and end with the error's exit status.

    Only an unexpected error also prints its traceback.
    """

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        _escape_unprintable_characters()
        try:
            with translate_all_errors(but=(typer.Exit, typer.Abort)):
                command(*args, **kwargs)
        except ExactbatchError as error:
            is_typed = isinstance(error, WrongUsage)
            err.print(
                Text.assemble(("error: ", "red"), "" if is_typed else f"{type(error).__name__}: ", str(error))
            )
            if not is_typed and (more := hint(error)):
                err.print(Text(more, style="dim"))
            raise typer.Exit(exit_status(error)) from None

    return run


def print_json(value: Any, *, in_one_line: bool = False) -> None:
    """Print a value as JSON on stdout, indented unless `in_one_line`; NaN and infinities, which JSON lacks, as strings.

    Raises typer.Exit if the reader has closed the pipe, as `head` does.
    """
    try:
        json.dump(_finite(value), sys.stdout, indent=None if in_one_line else 2, default=str, allow_nan=False)
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes stdout again when it ends, which must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None


def _finite(value: Any) -> Any:
    """Return a value in which "NaN", "Infinity" and "-Infinity" replace the floats of these names."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def confirm(question: str, *, yes: bool) -> None:
    """Ask whether to do what cannot be undone, unless `yes` is the answer.

    Raises typer.Abort if the answer is no, and WrongUsage if there is no terminal to ask on.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise WrongUsage(
            f"there is no terminal to ask on: {question} Nothing was changed. Add --yes to go on, or --dry-run to see "
            f"what would be done."
        )
    if not typer.confirm(question, err=True):
        raise typer.Abort


def _escape_unprintable_characters() -> None:
    """Print an escape for a character that the terminal's encoding lacks, instead of failing after the work."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
