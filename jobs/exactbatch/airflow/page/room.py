"""How many requests of the page run at a time, and for how long: Airflow's own routes need threads, too."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

from fastapi import HTTPException

# All routes of the API server that may block share 40 threads, also those that running tasks ask.
_AT_ONCE: Final = 4
_WAIT: Final = 2.0  # seconds for which a request waits for its turn, without a thread
_AGAIN: Final = "2"  # seconds after which a request that got no turn is to come again
_TIME: Final = 15.0  # seconds from its turn after which a request begins no statement and waits for none


class Room:
    """A dependency of the routes that need threads: waits for a turn, and returns the end of the request's time.

    The end is one of the monotonic clock. Raises an HTTP error 503 if no turn comes.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def __call__(self) -> AsyncIterator[float]:
        """Hold a turn while a request is answered."""
        try:
            await asyncio.wait_for(self._free.acquire(), _WAIT)
        except TimeoutError:
            raise HTTPException(
                503,
                f"The page is already answering {_AT_ONCE} requests, its maximum. Try again in a few seconds.",
                {"Retry-After": _AGAIN},
            ) from None
        try:
            yield time.monotonic() + _TIME
        finally:
            self._free.release()
