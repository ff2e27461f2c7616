"""Choose the consumer that reads: one that creates no object for a record, where that works and pays.

It saves 17% to 25% of the time of loads into `layout="by_batch"`, of flights, events and records that are compressed
with zstd (docs/evidence/ablation.md).
"""

import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from exactbatch.compiled.availability import is_available, pays
from exactbatch.kafka.consumer import Signals
from exactbatch.kafka.native_library import LibraryUnusable, load_library
from exactbatch.kafka.range_consumer import MessageConsumer, RangeConsumer

logger = logging.getLogger(__name__)


def open_consumer(
    config: Mapping[str, Any], signals: Signals, *, offsets: int, partitions: int, keeps_records: bool = False
) -> RangeConsumer:
    """Open a consumer that is to read a number of `offsets` in a number of `partitions`; `signals` get its callbacks.

    With `keeps_records`, its records can be read with all their parts after it is closed.

    Raises KafkaException for properties that librdkafka refuses.
    """
    # librdkafka asks for tokens through a callback of confluent_kafka's clients.
    can_be_native = partitions == 1 and not keeps_records and "oauth_cb" not in config
    if can_be_native and pays(offsets) and is_available() and (native := _native()) is not None:
        return native(config, signals)
    return MessageConsumer(config, signals)


@cache
def _native() -> Callable[[Mapping[str, Any], Signals], RangeConsumer] | None:
    """Return what opens a NativeConsumer; None, and a line in the log, if librdkafka cannot be called here."""
    from exactbatch.kafka.native_consumer import NativeConsumer  # needs the extra `fast`

    try:
        library = load_library()
    except LibraryUnusable as error:
        logger.warning("records are read through objects, which is slower: %s", error)
        return None
    return lambda config, signals: NativeConsumer(library, config, signals)
