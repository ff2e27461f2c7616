"""Choose the consumer that reads: one that creates no object for a record, where that works and pays."""

import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from exactbatch.kafka.consumer import Signals
from exactbatch.kafka.range_consumer import MessageConsumer, RangeConsumer

logger = logging.getLogger(__name__)

# Records: below, loading the compiled loops takes a fresh worker longer than the objects.
_NATIVE_FROM: Final = 100_000


def open_consumer(
    config: Mapping[str, Any], signals: Signals, *, records: int, partitions: int
) -> RangeConsumer:
    """Open a consumer that is to read so many records of so many partitions; `signals` get its callbacks.

    Raises KafkaException for properties that librdkafka refuses.
    """
    if partitions == 1 and records >= _NATIVE_FROM and (native := _native()) is not None:
        return native(config, signals)
    return MessageConsumer({**config, **signals.callbacks()})


@cache
def _native() -> Callable[[Mapping[str, Any], Signals], RangeConsumer] | None:
    """Return what opens a NativeConsumer; None, and a line in the log, if that does not work here."""
    try:
        from exactbatch.kafka.native_consumer import NativeConsumer
        from exactbatch.kafka.native_library import load_library

        library = load_library()
    except Exception as error:
        logger.warning("records are read through objects, which is slower: %s", error)
        return None
    return lambda config, signals: NativeConsumer(library, config, signals)
