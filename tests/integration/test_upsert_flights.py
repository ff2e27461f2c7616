"""Real flights as events, in the order of their real times: one row for each flight, with its last state.

`make test-long` takes all 336,776 of them.
"""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from confluent_kafka import Producer

from exactbatch import Json, Tuning, Upsert
from exactbatch.local.demo.flights import COUNT, flights
from support.environment import LONG

pytestmark = pytest.mark.timeout(900)

FLIGHTS = COUNT if LONG else 20_000
PARTITIONS = 4
KEY = ("time_hour", "carrier", "flight")


def events() -> Iterator[tuple[datetime, dict[str, Any]]]:
    """What became known of each flight, and when: two hours before it, at departure, and at arrival."""
    for value in islice(flights(), FLIGHTS):
        flight = json.loads(value)
        hour = datetime.fromisoformat(flight["time_hour"])
        planned = hour + timedelta(minutes=flight["minute"] or 0)
        known = {name: flight[name] for name in (*KEY, "origin", "dest")}
        yield planned - timedelta(hours=2), {**known, "state": "scheduled"}
        if flight["dep_time"] is not None:
            departed = planned + timedelta(minutes=flight["dep_delay"] or 0)
            yield departed, {**known, "state": "departed", "delay": flight["dep_delay"]}
            if flight["air_time"] is not None and flight["arr_delay"] is not None:
                arrived = departed + timedelta(minutes=flight["air_time"])
                yield arrived, {**known, "state": "arrived", "delay": flight["arr_delay"]}


def test_one_row_for_each_flight_with_its_last_state(world, make_topic, make_pipeline):
    topic = make_topic(PARTITIONS, retention_ms="-1")
    producer = Producer({**topic.properties, "linger.ms": 50, "queue.buffering.max.messages": 500_000})
    expected: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    sent = 0
    for _, event in sorted(events(), key=lambda each: each[0]):
        key = tuple(event[name] for name in KEY)
        while True:
            try:
                producer.produce(topic.name, json.dumps(event).encode(), partition=hash(key) % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        expected[key] = (event["state"], event.get("delay"))
        sent += 1
    assert producer.flush(120) == 0
    pipeline = make_pipeline(
        topic,
        value=Json(
            "time_hour timestamptz, carrier text, flight int, origin text, dest text, state text, delay int"
        ),
        sink=Upsert(f'public."{topic.name}"', key=KEY),
        tuning=Tuning(read_timeout="60 seconds", lock_timeout="60 seconds"),
    )
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows) == (sent, sent)
    found = world.rows(
        "select to_char(time_hour at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS'), carrier, flight, state, delay "
        f'from public."{topic.name}"'
    )
    assert len(found) == len(expected) == FLIGHTS
    assert {(row[0], row[1], row[2]): row[3:] for row in found} == {
        (key[0][:19], *key[1:]): last for key, last in expected.items()
    }
    assert world.is_exact(pipeline)
