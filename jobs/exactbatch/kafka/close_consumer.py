"""Close consumers, which may take for ever in librdkafka.

If a consumer is closed while librdkafka resolves an offset that is out of range, the thread of the broker may destroy
that request while it has a lock that the request's callback takes again (rd_kafka_offset_reset_op_cb in librdkafka
2.x): it waits for itself, and rd_kafka_destroy() for it. A task would then hang with its error, and no signal ends it.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

_TIMEOUT: Final = 10.0  # seconds; a consumer without a group usually closes within milliseconds

logger = logging.getLogger(__name__)


class _Closeable(Protocol):
    def close(self) -> None:
        """Close it."""


C = TypeVar("C", bound=_Closeable)


@contextmanager
def closing_consumer(consumer: C) -> Iterator[C]:
    """Close a consumer at the end of the block, as close_consumer() does."""
    try:
        yield consumer
    finally:
        close_consumer(consumer)


def close_consumer(consumer: _Closeable) -> None:
    """Close a consumer, and wait for that no longer than 10 s: its threads are then left to the end of the process.

    Raises what closing it raises.
    """
    raised = list[BaseException]()

    def close() -> None:
        try:
            consumer.close()
        except BaseException as error:
            raised.append(error)

    closer = threading.Thread(target=close, name="close consumer", daemon=True)
    closer.start()
    closer.join(_TIMEOUT)
    if closer.is_alive():
        logger.warning(
            "librdkafka has not closed a consumer within %s s: its threads stay until this process ends",
            _TIMEOUT,
        )
    if raised:
        raise raised[0]
