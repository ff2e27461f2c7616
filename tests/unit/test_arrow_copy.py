"""Rows and rejects are copied by turns."""

from collections.abc import Generator, Iterator

import pytest

from exactbatch.batch.rows.arrow_copy import copy_in_turns
from exactbatch.batch.rows.rejects import PendingRejects


def test_an_error_closes_what_is_read_from() -> None:
    """The traceback of the error holds the generator, and with it a consumer."""
    closed = []

    def rows() -> Generator[int]:
        try:
            yield 1
        finally:
            closed.append(True)

    def refuse(given: Iterator[int]) -> None:
        next(given)
        raise ZeroDivisionError

    reading = rows()
    with pytest.raises(ZeroDivisionError):
        copy_in_turns(reading, PendingRejects(), refuse, lambda rejects: None)
    assert closed == [True]
