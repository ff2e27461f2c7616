"""A reference: librdkafka's C consumer, and COPY of bytes encoded beforehand, on the same cores.

Nothing is decoded, encoded, compared or accounted for. Each process consumes some of the partitions, without a Python
object for any record, and at the same time sends rows that were encoded before to a table of the same columns.
"""

import ctypes
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka
import psycopg2

_MESSAGES = 10_000  # of one call
_CONSUMER = 1  # rd_kafka_type_t: RD_KAFKA_CONSUMER
_PARTITION_EOF = -191  # rd_kafka_resp_err_t: RD_KAFKA_RESP_ERR__PARTITION_EOF
_OFFSET_IN_PARTITION = (
    16  # bytes before `offset` in rd_kafka_topic_partition_t: a pointer, and an int32 with padding
)


def encode(dsn: str, table: str, part: int, parts: int, file: Path) -> None:
    """Write the rows of every `parts`-th partition of a loaded table to a file, as binary COPY reads them."""
    query = (
        f"copy (select * from {table} where mod(kafka_partition, {parts}) = {part}) to stdout (format binary)"
    )
    with (
        closing(psycopg2.connect(dsn)) as connection,
        connection.cursor() as cursor,
        file.open("wb") as output,
    ):
        cursor.copy_expert(query, output, 1 << 20)


def run(
    properties: Mapping[str, Any], dsn: str, topic: str, table: str, partitions: Sequence[int], file: Path
) -> int:
    """Consume the partitions, and copy the file into the table meanwhile; return how many records there were."""
    failed: list[BaseException] = []

    def copy() -> None:
        try:
            with (
                file.open("rb") as rows,
                closing(psycopg2.connect(dsn)) as connection,
                connection,
                connection.cursor() as cursor,
            ):
                cursor.copy_expert(f"copy {table} from stdin (format binary)", rows, 1 << 20)
        except BaseException as error:
            failed.append(error)

    sender = threading.Thread(target=copy)
    sender.start()
    records = consume(properties, topic, partitions)
    sender.join()
    if failed:
        raise failed[0]
    return records


def consume(properties: Mapping[str, Any], topic: str, partitions: Sequence[int]) -> int:
    """Read partitions from their first to their last record, and return how many there were."""
    library = _library()
    conf, error = ctypes.c_void_p(library.rd_kafka_conf_new()), ctypes.create_string_buffer(512)
    settings = {
        **properties,
        "group.id": "reference",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
        "enable.partition.eof": "true",
        "fetch.queue.backoff.ms": "5",
        "fetch.wait.max.ms": "50",
        "queued.min.messages": "1000000",
        "queued.max.messages.kbytes": "65536",
        "check.crcs": "false",
    }
    for name, value in settings.items():
        if library.rd_kafka_conf_set(conf, name.encode(), str(value).encode(), error, 512):
            raise RuntimeError(error.value.decode())
    client = ctypes.c_void_p(library.rd_kafka_new(_CONSUMER, conf, error, 512))
    if not client:
        raise RuntimeError(error.value.decode())
    library.rd_kafka_poll_set_consumer(client)
    assigned = ctypes.c_void_p(library.rd_kafka_topic_partition_list_new(len(partitions)))
    for partition in partitions:
        entry = library.rd_kafka_topic_partition_list_add(assigned, topic.encode(), partition)
        ctypes.c_int64.from_address(entry + _OFFSET_IN_PARTITION).value = 0
    library.rd_kafka_assign(client, assigned)
    library.rd_kafka_topic_partition_list_destroy(assigned)
    queue = ctypes.c_void_p(library.rd_kafka_queue_get_consumer(client))
    messages = (ctypes.c_void_p * _MESSAGES)()
    records, remaining, destroy = 0, len(partitions), library.rd_kafka_message_destroy
    while remaining:
        count = library.rd_kafka_consume_batch_queue(queue, 100, messages, _MESSAGES)
        for index in range(count):
            message = messages[index]
            if code := ctypes.c_int.from_address(message).value:
                if code != _PARTITION_EOF:
                    raise RuntimeError(f"librdkafka's error {code}")
                remaining -= 1
            else:
                records += 1
            destroy(message)
    library.rd_kafka_queue_destroy(queue)
    library.rd_kafka_consumer_close(client)
    library.rd_kafka_destroy(client)
    return records


def _library() -> Any:
    """Return the librdkafka that confluent-kafka contains."""
    [path] = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka-*.so*")
    library = ctypes.CDLL(str(path))
    pointers = (
        "conf_new",
        "new",
        "topic_partition_list_new",
        "topic_partition_list_add",
        "queue_get_consumer",
    )
    for name in pointers:
        getattr(library, f"rd_kafka_{name}").restype = ctypes.c_void_p
    library.rd_kafka_consume_batch_queue.restype = ctypes.c_ssize_t
    library.rd_kafka_consume_batch_queue.argtypes = (
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_size_t,
    )
    library.rd_kafka_topic_partition_list_add.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32)
    library.rd_kafka_message_destroy.argtypes = (ctypes.c_void_p,)
    library.rd_kafka_message_destroy.restype = None
    return library
