"""The exit statuses of the job and of the command line."""

from typing import Final

from exactbatch.errors import ExactbatchError

RETRYABLE: Final = 1
DIFFERS: Final = 1  # an audit that found a difference
TERMINAL: Final = 42  # an error that no retry can mend


def exit_status(error: ExactbatchError) -> int:
    """1 where the same command may succeed later, 42 where it cannot."""
    return RETRYABLE if error.retryable else TERMINAL
