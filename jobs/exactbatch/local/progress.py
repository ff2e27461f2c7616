"""How the stack says what it is doing, without knowing a terminal."""

from collections.abc import Callable

Progress = Callable[[str], None]


def silent(step: str) -> None:
    """Say nothing: the default of the Python API."""
