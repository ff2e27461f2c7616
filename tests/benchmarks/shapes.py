"""The shapes of records that the ways load: their columns, their values, and how a target's contents are summed up."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random

import change_events

from exactbatch import Debezium, Json
from exactbatch.local.demo.flights import COUNT
from exactbatch.local.demo.flights import flights as real_flights
from pipelines.flights import flights as flights_pipeline

_BAD_EVERY = 99  # one in this number of records is malformed; odd, so that each of the 4 partitions gets some
_START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One shape of records.

    values       yields different values, which a topic repeats
    different    how many of them
    sums         an SQL list of aggregates that differ if a column of a target came out otherwise
    compression  of the producer
    bad          the share of malformed records
    share        how many records a run uses, relative to flights
    flat         each member of a JSON object is the column of its name, so that ways other than exactbatch read it, too
    keys         how many different flights there are
    """

    name: str
    title: str
    value: Json | Debezium = field(repr=False)
    values: Callable[[], Iterator[bytes]] = field(repr=False)
    different: int
    sums: str = field(repr=False)
    compression: str = "none"
    bad: float = 0.0
    share: float = 1.0
    flat: bool = True
    keys: int = COUNT

    def good(self, rows: int) -> int:
        """Return how many of `rows` records are not malformed."""
        return rows - (rows + _BAD_EVERY - 1) // _BAD_EVERY if self.bad else rows


def events() -> Iterator[bytes]:
    """Yield events of about 60 bytes."""
    random = Random(17)
    for number in count():
        kind = random.choice(("view", "click", "buy"))
        yield b'{"id":%d,"user":%d,"kind":"%s","price":%d.25}' % (
            10_000_000 + number,
            random.randrange(1_000_000),
            kind.encode(),
            random.randrange(10, 99),
        )


def nested() -> Iterator[bytes]:
    """Yield orders of about 2 kB, whose customer and lines are documents."""
    random = Random(18)
    words = [f"word{number}" for number in range(500)]
    for number in count():
        lines = [
            {
                "sku": f"SKU-{random.randrange(10**8):08}",
                "quantity": random.randrange(1, 9),
                "price": random.randrange(100, 99_999) / 100,
                "text": " ".join(random.choices(words, k=12)),
            }
            for _ in range(12)
        ]
        order = {
            "id": number,
            "at": (_START + timedelta(seconds=number)).isoformat(),
            "status": random.choice(("new", "paid", "sent")),
            "customer": {"id": random.randrange(10**6), "name": " ".join(random.choices(words, k=2))},
            "lines": lines,
        }
        yield json.dumps(order, separators=(",", ":")).encode()


def flights_some_bad() -> Iterator[bytes]:
    """Yield flights; 1 % of them end too early."""
    for number, value in enumerate(real_flights()):
        yield value[:-9] if number % _BAD_EVERY == 0 else value


_FLIGHT_SUMS = "sum(flight), sum(dep_delay), count(tailnum), min(time_hour), max(time_hour), sum(distance)"
FLIGHTS = Shape(
    name="flights",
    title="flights: 299 bytes, 19 fields",
    value=flights_pipeline.value,  # type: ignore[arg-type]  # it is Json
    values=real_flights,
    different=COUNT,
    sums=_FLIGHT_SUMS,
)
EVENTS = Shape(
    name="events",
    title="events: 60 bytes, 4 fields",
    value=Json("id bigint, user bigint, kind text, price double precision"),
    values=events,
    different=200_000,
    sums="sum(id), sum(\"user\"), count(*) filter (where kind = 'buy'), sum(price)",
)
NESTED = Shape(
    name="nested",
    title="orders: 2 kB, nested",
    value=Json("id bigint, at timestamptz, status text, customer jsonb, lines jsonb"),
    values=nested,
    different=20_000,
    share=0.25,
    sums="sum(id), max(at), count(*) filter (where status = 'paid'), sum((customer->>'id')::bigint), "
    "sum(jsonb_array_length(lines))",
)
BAD = Shape(
    name="bad",
    title="flights, 1 % malformed",
    value=FLIGHTS.value,
    values=flights_some_bad,
    different=_BAD_EVERY * (COUNT // _BAD_EVERY),  # the pattern goes on where the values begin again
    sums=_FLIGHT_SUMS,
    bad=1 / _BAD_EVERY,
)
ZSTD = Shape(
    name="zstd",
    title="flights, compressed with zstd",
    value=FLIGHTS.value,
    values=real_flights,
    different=COUNT,
    sums=_FLIGHT_SUMS,
    compression="zstd",
)
# Where the nested form of a flight has a column.
_PLACES = {member: f"{name}.{member}" for name, members in change_events.NESTED.items() for member in members}
PATHS = Shape(
    name="paths",
    title="flights in nested objects, read with paths",
    value=Json(
        ", ".join(
            f"{column.name} {column.type} from '{_PLACES.get(column.name, column.name)}'"
            for column in FLIGHTS.value.columns
        )
    ),
    values=change_events.nested_flights,
    different=COUNT,
    sums=_FLIGHT_SUMS,
    flat=False,
)
_FLIGHT_COLUMNS = ", ".join(f"{column.name} {column.type}" for column in FLIGHTS.value.columns)
DEBEZIUM = Shape(
    name="debezium",
    title="flights as Debezium's events, JSON without a schema",
    value=Debezium(_FLIGHT_COLUMNS),
    values=change_events.debezium,
    different=COUNT,
    sums=_FLIGHT_SUMS,
    flat=False,
)
DEBEZIUM_SCHEMA = Shape(
    name="debezium_schema",
    title="flights as Debezium's events, JSON with a schema",
    value=Debezium(_FLIGHT_COLUMNS),
    values=change_events.debezium_with_schema,
    different=20_000,
    share=0.25,
    sums=_FLIGHT_SUMS,
    flat=False,
)
DEBEZIUM_AVRO = Shape(
    name="debezium_avro",
    title="flights as Debezium's events, Avro",
    value=Debezium(_FLIGHT_COLUMNS, registry="http://127.0.0.1"),  # a place has the address of its registry
    values=change_events.debezium_avro,
    different=20_000,
    share=0.25,
    sums=_FLIGHT_SUMS,
    flat=False,
)
CHANGES = Shape(
    name="changes",
    title="changes of flights as Debezium's events, JSON with a schema",
    value=Debezium(_FLIGHT_COLUMNS),
    values=change_events.changes_with_schema,
    different=sys.maxsize,
    share=0.05,
    sums=_FLIGHT_SUMS,
    flat=False,
    keys=change_events.CHANGED,
)
CHANGES_AVRO = Shape(
    name="changes_avro",
    title="changes of flights as Debezium's events, Avro",
    value=Debezium(_FLIGHT_COLUMNS, registry="http://127.0.0.1"),
    values=change_events.changes_avro,
    different=sys.maxsize,
    share=0.05,
    sums=_FLIGHT_SUMS,
    flat=False,
    keys=change_events.CHANGED,
)
# They are made for an Upsert: a row for each flight, of which there are several changes.
CHANGED = (CHANGES.name, CHANGES_AVRO.name)
_ALL = (
    FLIGHTS,
    EVENTS,
    NESTED,
    BAD,
    ZSTD,
    PATHS,
    DEBEZIUM,
    DEBEZIUM_SCHEMA,
    DEBEZIUM_AVRO,
    CHANGES,
    CHANGES_AVRO,
)
SHAPES = {shape.name: shape for shape in _ALL}
