"""The exit statuses of process_batch.py and of the command line, which scripts may rely on."""

from typing import Final

from exactbatch.errors import ExactbatchError, WrongUsage

RETRYABLE: Final = 1  # a retryable error
WRONG_USAGE: Final = 2  # what was typed is wrong, as Typer has it, or cannot be confirmed without a terminal
CHECK_FAILED: Final = 3  # the command ran, and found a difference, a problem or a server that is down
TERMINAL: Final = 42  # a terminal error


def exit_status(error: ExactbatchError) -> int:
    """Return the exit status of a command that ends with this error."""
    if isinstance(error, WrongUsage):
        return WRONG_USAGE
    return RETRYABLE if error.retryable else TERMINAL
