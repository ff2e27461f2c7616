"""librdkafka's C interface: the functions that a read needs, in the library that confluent_kafka has loaded.

Their signatures, and the layouts of the structures, are those of rdkafka.h of librdkafka 2, which keeps them
compatible.
"""

import ctypes as c
import struct
import sys
from typing import Any, Final

import confluent_kafka
from confluent_kafka import cimpl

_MAJOR_VERSION: Final = 2
ERROR_TEXT_BYTES: Final = 512

ErrorCallback: Final = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p, c.c_void_p)
# Without its last two arguments, the size of the text and the opaque pointer. A result of None frees the text.
StatsCallback: Final = c.CFUNCTYPE(c.c_void_p, c.c_void_p, c.c_char_p)
ThrottleCallback: Final = c.CFUNCTYPE(None, c.c_void_p, c.c_char_p, c.c_int32, c.c_int, c.c_void_p)


class LibraryUnusable(Exception):
    """The C interface cannot be used in this process; the text says why."""


class MessageStruct(c.Structure):
    """rd_kafka_message_t."""

    _fields_ = [
        ("err", c.c_int),
        ("rkt", c.c_void_p),
        ("partition", c.c_int32),
        ("payload", c.c_void_p),
        ("len", c.c_size_t),
        ("key", c.c_void_p),
        ("key_len", c.c_size_t),
        ("offset", c.c_int64),
        ("_private", c.c_void_p),
    ]


class PartitionStruct(c.Structure):
    """rd_kafka_topic_partition_t."""

    _fields_ = [
        ("topic", c.c_char_p),
        ("partition", c.c_int32),
        ("offset", c.c_int64),
        ("metadata", c.c_void_p),
        ("metadata_size", c.c_size_t),
        ("opaque", c.c_void_p),
        ("err", c.c_int),
        ("_private", c.c_void_p),
    ]


class MetadataTopicStruct(c.Structure):
    """rd_kafka_metadata_topic_t."""

    _fields_ = [
        ("topic", c.c_char_p),
        ("partition_cnt", c.c_int),
        ("partitions", c.c_void_p),
        ("err", c.c_int),
    ]


class MetadataStruct(c.Structure):
    """rd_kafka_metadata_t."""

    _fields_ = [
        ("broker_cnt", c.c_int),
        ("brokers", c.c_void_p),
        ("topic_cnt", c.c_int),
        ("topics", c.POINTER(MetadataTopicStruct)),
        ("orig_broker_id", c.c_int32),
        ("orig_broker_name", c.c_char_p),
    ]


_INT64: Final = c.POINTER(c.c_int64)
# The result and the arguments of each function, by its name without the prefix rd_kafka_.
_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "version": (c.c_int,),
    "last_error": (c.c_int,),
    "err2str": (c.c_char_p, c.c_int),
    "fatal_error": (c.c_int, c.c_void_p, c.c_char_p, c.c_size_t),
    "conf_new": (c.c_void_p,),
    "conf_destroy": (None, c.c_void_p),
    "conf_set": (c.c_int, c.c_void_p, c.c_char_p, c.c_char_p, c.c_char_p, c.c_size_t),
    "conf_set_error_cb": (None, c.c_void_p, ErrorCallback),
    "conf_set_stats_cb": (None, c.c_void_p, StatsCallback),
    "conf_set_throttle_cb": (None, c.c_void_p, ThrottleCallback),
    "new": (c.c_void_p, c.c_int, c.c_void_p, c.c_char_p, c.c_size_t),
    "destroy": (None, c.c_void_p),
    "poll_set_consumer": (c.c_int, c.c_void_p),
    "queue_get_consumer": (c.c_void_p, c.c_void_p),
    "queue_destroy": (None, c.c_void_p),
    "consumer_close": (c.c_int, c.c_void_p),
    "consume_batch_queue": (c.c_ssize_t, c.c_void_p, c.c_int, c.c_void_p, c.c_size_t),
    "assign": (c.c_int, c.c_void_p, c.c_void_p),
    "topic_partition_list_new": (c.c_void_p, c.c_int),
    "topic_partition_list_add": (c.POINTER(PartitionStruct), c.c_void_p, c.c_char_p, c.c_int32),
    "topic_partition_list_destroy": (None, c.c_void_p),
    "topic_partition_set_leader_epoch": (None, c.POINTER(PartitionStruct), c.c_int32),
    "topic_new": (c.c_void_p, c.c_void_p, c.c_char_p, c.c_void_p),
    "topic_name": (c.c_char_p, c.c_void_p),
    "topic_destroy": (None, c.c_void_p),
    "metadata": (
        c.c_int,
        c.c_void_p,
        c.c_int,
        c.c_void_p,
        c.POINTER(c.POINTER(MetadataStruct)),
        c.c_int,
    ),
    "metadata_destroy": (None, c.POINTER(MetadataStruct)),
    "clusterid": (c.c_void_p, c.c_void_p, c.c_int),
    "mem_free": (None, c.c_void_p, c.c_void_p),
    "get_watermark_offsets": (c.c_int, c.c_void_p, c.c_char_p, c.c_int32, _INT64, _INT64),
    "query_watermark_offsets": (c.c_int, c.c_void_p, c.c_char_p, c.c_int32, _INT64, _INT64, c.c_int),
    "message_errstr": (c.c_char_p, c.c_void_p),
    "message_leader_epoch": (c.c_int32, c.c_void_p),
    "message_headers": (c.c_int, c.c_void_p, c.POINTER(c.c_void_p)),
    "header_get_all": (
        c.c_int,
        c.c_void_p,
        c.c_size_t,
        c.POINTER(c.c_char_p),
        c.POINTER(c.c_void_p),
        c.POINTER(c.c_size_t),
    ),
    "message_timestamp": (c.c_int64, c.c_void_p, c.c_void_p),
    "message_destroy": (None, c.c_void_p),
}


def load_library() -> Any:
    """Return an object with the functions, under their names without the prefix rd_kafka_.

    Raises LibraryUnusable.
    """
    if sys.platform not in ("linux", "darwin") or sys.byteorder != "little" or struct.calcsize("P") != 8:
        raise LibraryUnusable(f"{sys.platform}, {sys.byteorder}-endian, is not a 64-bit Linux or macOS")
    try:
        # A look-up in confluent_kafka's own module continues in the libraries that it was linked with: it finds
        # the one that this process uses already, wherever that is.
        library = c.CDLL(cimpl.__file__)
        functions: Any = _Functions(library)
    except (OSError, AttributeError) as error:
        raise LibraryUnusable(f"confluent_kafka's librdkafka cannot be called: {error}") from None
    version, expected = functions.version(), confluent_kafka.libversion()[1]
    if version != expected or version >> 24 != _MAJOR_VERSION:
        raise LibraryUnusable(f"librdkafka's version is {version:#x}, and confluent_kafka uses {expected:#x}")
    return functions


class _Functions:
    """librdkafka's functions with their signatures."""

    def __init__(self, library: c.CDLL) -> None:
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(library, f"rd_kafka_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)


def find_address(function: Any) -> int:
    """Return the address of a function of the library."""
    address = c.cast(function, c.c_void_p).value
    assert address is not None
    return address
