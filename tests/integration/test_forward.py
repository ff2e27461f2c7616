"""What batches commit reaches a topic exactly once, in order by key, whatever is killed and whenever."""

import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from decimal import Decimal
from typing import Any

import psycopg2.errors
import pytest
from airflow.sdk import DAG
from confluent_kafka import OFFSET_END, KafkaException, TopicPartition
from kafka import KafkaProducer

from exactbatch import Aggregate, Append, Count, Json, Pipeline, Sum, ToTopic, Tuning, Upsert, Window
from exactbatch.airflow.connections import Connections
from exactbatch.airflow.task_definitions import forward_task
from exactbatch.airflow.versions import AirflowSkipException
from exactbatch.errors import (
    ConfigurationError,
    Fenced,
    KafkaUnavailable,
    NotRegistered,
    PostgresUnavailable,
    ResultsDiverged,
    ResultTooLarge,
    TargetMismatch,
    TopicMissing,
    TopicRecreated,
)
from exactbatch.failpoints import FAILPOINTS, actions
from exactbatch.forwarding import forward as forwarding
from exactbatch.forwarding.forward import Forwarded, forward_results
from exactbatch.forwarding.producer import ResultProducer
from exactbatch.forwarding.sent import wait_for_settled_partitions
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, PendingResult, Streams
from exactbatch.operations.metrics import measure
from exactbatch.operations.status import load_status
from exactbatch.postgres.connection import connect, transaction
from support.batch_runner import recreate
from support.commands import start_command
from support.environment import LONG, draw_seed
from support.forwarded import (
    Message,
    check_once_in_order,
    committed,
    latest_by_key,
    standing_rows,
)
from support.replays import ranges
from support.roles import ROLES
from support.staged_batches import LINEAGE, Batches
from support.topics import NoUtf8, producer_properties, record
from support.waiting import wait_for

COLUMNS = "carrier text, flight int, late boolean"
SENDING = sorted(
    name for name in FAILPOINTS if name.startswith("forward.") and name != "forward.after_outbox"
)


class Forwarding:
    """Batches of one pipeline, the topic of its results, and forwarders of any process."""

    def __init__(self, batches: Batches, settings: Any, topic: Any, folder: Any) -> None:
        self.batches, self.settings, self.topic, self.folder = batches, settings, topic, folder
        self.connection = batches.connection

    @property
    def pipeline(self) -> Pipeline:
        return self.batches.pipeline

    def send(self, **options: Any) -> Forwarded:
        return forward_results(self.connection, self.settings, self.pipeline, **options)

    def messages(self) -> list[Message]:
        return committed(self.settings.kafka, self.topic.name)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with transaction(self.connection) as cursor:
            cursor.execute(statement)
            return [tuple(row) for row in cursor.fetchall()]

    def stream(self) -> Any:
        with transaction(self.connection):
            return Streams(self.connection).read("p")

    def start(self, *arguments: str, failpoints: str = "") -> subprocess.Popen[str]:
        """Start `exactbatch forward` as a process of its own."""
        return start_command(
            self.settings, self.folder, "forward", self.pipeline, *arguments, failpoints=failpoints
        )

    def check(self) -> list[Message]:
        """Check that the topic has exactly what was committed; return its messages."""
        # A commit returns before each partition has its marker.
        wait_for_settled_partitions(KafkaBroker(self.settings.kafka), self.topic.name)
        stream, messages = self.stream(), self.messages()
        assert (stream.unsent, stream.attempted_sequence) == (0, None)
        assert self.rows("select count(*) from exactbatch.outbox") == [(0,)]
        check_once_in_order(messages, stream.last_sequence)
        return messages


@pytest.fixture
def make(connection, settings, make_topic, tmp_path):
    def make(sink: Any, columns: str = COLUMNS, *, partitions: int = 3, **options: Any) -> Forwarding:
        topic = make_topic(partitions)
        pipeline = Pipeline(
            name="p",
            topics=("t",),
            value=Json(columns),
            sink=sink,
            tuning=Tuning(lock_timeout="10 seconds"),
            forward=ToTopic(topic.name, **options),
        )
        return Forwarding(Batches(connection, pipeline), settings, topic, tmp_path)

    return make


@pytest.fixture
def late(make):
    """Flights that go back to a topic with their carrier as the key."""
    return make(Append("public.late"), keyed_by="carrier", value=("flight", "late"), key_format="text")


@pytest.fixture
def small(monkeypatch):
    """Transactions of three results."""
    monkeypatch.setattr(forwarding, "_RESULTS", 3)


def flights(first: int, count: int) -> list[tuple[Any, ...]]:
    return [("ABC"[each % 3], each, each % 2 == 0) for each in range(first, first + count)]


def message_of(row: tuple[Any, ...]) -> tuple[bytes, bytes]:
    carrier, flight, late = row
    return carrier.encode(), json.dumps({"flight": flight, "late": late}, separators=(",", ":")).encode()


def test_rows_of_an_append_reach_the_topic_in_the_order_of_their_offsets(late, small):
    first = late.batches.run(*flights(0, 5)).batch
    late.batches.run(*flights(5, 5), partition=1)
    told = late.send()
    assert (told.sent, told.sent_sequence, told.unsent) == (10, 10, 0)
    messages = late.check()
    in_order = sorted(messages, key=lambda each: each.sequence)
    assert [(each.key, each.value) for each in in_order] == list(map(message_of, flights(0, 10)))
    assert in_order[0].headers == {
        "stream": late.stream().stream,
        "sequence": "1",
        "batch": str(first.batch_id),
        "plan": str(first.plan_id),
        "kind": "advance",
        "change": "row",
    }
    assert late.send().sent == 0
    assert len(late.messages()) == 10


def test_a_key_has_the_partition_that_producers_of_java_choose(make):
    """Murmur2 of the key, as org.apache.kafka.common.utils.Utils has it: known values of its own tests."""
    forwarding = make(Append("public.late"), "name text", partitions=7, keyed_by="name", key_format="text")
    hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536}
    forwarding.batches.run(*((name,) for name in hashes))
    forwarding.send()
    found = {each.key.decode(): each.partition for each in forwarding.check()}
    assert found == {name: (number & 0x7FFFFFFF) % 7 for name, number in hashes.items()}


def test_a_batch_that_is_not_committed_leaves_nothing_in_the_outbox(late, monkeypatch):
    monkeypatch.setitem(actions, "forward.after_outbox", "error")
    with pytest.raises(RuntimeError, match="forward.after_outbox"):
        late.batches.run(*flights(0, 5))
    assert late.stream().last_sequence == 0
    assert late.rows("select count(*) from exactbatch.outbox") == [(0,)]


@pytest.mark.slow
@pytest.mark.parametrize("moment", SENDING)
def test_a_forwarder_that_is_killed_neither_loses_nor_repeats(late, moment):
    late.batches.run(*flights(0, 20))
    late.send()
    late.batches.run(*flights(20, 20), partition=1)
    killed = late.start(failpoints=f"{moment}=kill")
    _, problems = killed.communicate(timeout=60)
    assert killed.returncode == -9, problems
    late.batches.run(*flights(40, 5))
    late.send()
    messages = late.check()
    assert standing_rows(messages) == Counter(map(message_of, flights(0, 45)))


@pytest.mark.slow
def test_forwarders_that_are_killed_at_any_time_neither_lose_nor_repeat(late):
    numbers = random.Random(draw_seed())
    produced = 0
    for _ in range(50 if LONG else 4):
        count = numbers.randint(1, 3000)
        late.batches.run(*flights(produced, count), partition=numbers.randint(0, 1))
        produced += count
        forwarder = late.start()
        time.sleep(numbers.uniform(0.5, 3))
        forwarder.kill()
        forwarder.communicate(timeout=60)
    late.send()
    assert standing_rows(late.check()) == Counter(map(message_of, flights(0, produced)))


def test_a_transaction_that_failed_is_followed_by_smaller_ones(late, monkeypatch):
    """What a quota or a network did not let pass in time would not pass in the next try either."""
    sizes = []
    send = ResultProducer.send

    def noted(producer: ResultProducer, results: list[PendingResult]) -> dict[int, tuple[int, int]]:
        sizes.append(len(results))
        return send(producer, results)

    monkeypatch.setattr(ResultProducer, "send", noted)
    late.batches.run(*flights(0, 20))
    for moment in ("forward.before_commit", "forward.after_produce"):
        with monkeypatch.context() as failing:
            failing.setitem(actions, moment, "error")
            with pytest.raises(RuntimeError):
                late.send()
    assert late.send().sent == 20
    assert sizes == [20, 10, 5, 10, 5]
    assert standing_rows(late.check()) == Counter(map(message_of, flights(0, 20)))


def test_a_transaction_that_the_brokers_ended_is_not_blamed_on_another_forwarder(late, monkeypatch):
    def ended(_producer: ResultProducer, _results: list[PendingResult]) -> None:
        raise Fenced("another forwarder has taken over")

    late.batches.run(*flights(0, 20))
    with monkeypatch.context() as failing:
        failing.setattr(ResultProducer, "send", ended)
        with pytest.raises(
            KafkaUnavailable, match="ended a transaction of 20 results, which took longer than 60 s"
        ):
            late.send()
    assert late.send().sent == 20


@pytest.mark.slow
@pytest.mark.parametrize("moment", [each for each in SENDING if "confirm" not in each])
def test_a_forwarder_that_another_one_replaces_sends_nothing_more(late, tmp_path, small, moment):
    late.batches.run(*flights(0, 10))
    go = tmp_path / "go"
    held = late.start(failpoints=f"{moment}=hold:{go}")
    wait_for((tmp_path / "go.held").exists, timeout=60)
    late.send()
    late.batches.run(*flights(10, 10))
    go.touch()
    _, problems = held.communicate(timeout=60)
    assert held.returncode == 42, problems
    assert "another forwarder has taken over" in " ".join(problems.split())
    assert "FATAL" not in problems
    assert "[thrd:" not in problems
    late.send()
    assert standing_rows(late.check()) == Counter(map(message_of, flights(0, 20)))


class LosesErrors:
    """A producer whose flush() fails as confluent-kafka's does if a callback follows a fatal error."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def flush(self, _seconds: float) -> int:
        raise SystemError("<method 'flush'> returned NULL without setting an exception")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


@pytest.mark.parametrize("call", ["produce", "flush"])
def test_a_forwarder_that_is_replaced_says_so_although_its_call_does_not(late, call):
    result = PendingResult(1, 1, None, None, "insert", b"A", b"{}")

    def replaced() -> Iterator[PendingResult]:
        yield result
        with closing(producer(late)), suppress(KafkaException, SystemError):
            forwarder._producer.produce(late.topic.name, b"refused")
            wait_for(lambda: forwarder._producer.poll(0.1) < 0, timeout=30)
        if call == "produce":
            yield result

    late.batches.run(*flights(0, 1))
    with closing(producer(late)) as forwarder:
        if call == "flush":
            forwarder._producer = LosesErrors(forwarder._producer)
        with pytest.raises(Fenced, match="another forwarder has taken over"):
            forwarder.send(replaced())
    assert late.messages() == []


@pytest.mark.parametrize("moment", ["before its producer is open", "between two transactions"])
def test_what_another_forwarder_has_sent_and_deleted_is_not_taken_for_lost(late, small, monkeypatch, moment):
    others = iter([late.send])

    def let_another_send(*arguments: Any, **options: Any) -> ResultProducer:
        for send in others:
            send()
        return ResultProducer(*arguments, **options)

    def at(failpoint: str) -> None:
        if failpoint == "forward.after_confirm":
            for send in others:
                send()

    late.batches.run(*flights(0, 10))
    if moment == "between two transactions":
        monkeypatch.setattr(forwarding, "failpoint", at)
    else:
        monkeypatch.setattr(forwarding, "ResultProducer", let_another_send)
    with pytest.raises(Fenced, match="another forwarder has taken over"):
        late.send()
    assert standing_rows(late.check()) == Counter(map(message_of, flights(0, 10)))


def producer(forwarding: Forwarding) -> ResultProducer:
    """Open a producer of the stream, as a forwarder does."""
    kafka = forwarding.settings.kafka
    return ResultProducer(kafka, forwarding.stream(), compression="none", max_message_bytes=1_000_000)


def test_forwarders_that_fence_each_other_all_the_time_send_each_result_once(late):
    late.batches.run(*flights(0, 4000))
    forwarders = [late.start() for _ in range(3)]
    for _ in range(3):
        with suppress(Fenced):
            late.send()
    for each in forwarders:
        _, problems = each.communicate(timeout=120)
        assert each.returncode == 0 or "another forwarder has taken over" in " ".join(problems.split())
    late.send()
    assert standing_rows(late.check()) == Counter(map(message_of, flights(0, 4000)))


def test_an_open_transaction_of_others_holds_a_forwarder_back(late, settings, monkeypatch):
    late.batches.run(*flights(0, 3))
    late.send()
    late.batches.run(*flights(3, 3))
    other = late.topic.transaction(b"x", end="open")
    monkeypatch.setattr("exactbatch.forwarding.sent._PROGRESS_TIMEOUT", 0.5)
    with pytest.raises(Exception, match="an open transaction begins there"):
        late.send()
    late.topic.end_transaction(other, "abort")
    late.send()
    late.check()


def test_messages_of_others_in_the_topic_are_passed_over(late):
    late.batches.run(*flights(0, 3))
    late.send()
    of_another = [("exactbatch-sequence", b"99"), ("exactbatch-plan", b"%032d" % 0), ("x", None)]
    late.topic.produce(*[b"other"] * 50, headers=[("exactbatch-stream", b"exactbatch.q"), *of_another])
    late.topic.transaction(b"aborted", end="abort")
    late.batches.run(*flights(3, 3))
    late.send()
    ours = [each for each in late.messages() if each.value != b"other"]
    check_once_in_order(ours, 6)


@pytest.mark.parametrize(
    "others",
    [
        [],
        [("exactbatch-sequence", b"x"), ("exactbatch-plan", bytes(16))],
        [("exactbatch-sequence", b"9" * 5000), ("exactbatch-plan", b"\xff")],
        [("exactbatch-sequence", b"%d" % 2**63), ("exactbatch-plan", b"%032d" % 0)],
        [(NoUtf8("??"), b"z")],
    ],
    ids=[
        "no number",
        "no number but text",
        "a long number",
        "a number that is no bigint",
        "a name that is not UTF-8",
    ],
)
def test_a_message_that_only_looks_like_a_result_stops_no_forwarder(late, others):
    late.batches.run(*flights(0, 3))
    late.send()
    headers = [("exactbatch-stream", late.stream().stream.encode()), *others]
    producer = KafkaProducer(**producer_properties(late.settings.kafka))  # which takes names that are no text
    for _ in range(100):
        producer.send(late.topic.name, b"other", headers=headers)
    producer.flush()
    producer.close()
    late.batches.run(*flights(3, 3))
    assert late.send().sent == 3
    assert late.stream().sent_sequence == 6


def test_what_the_last_forwarder_could_not_record_is_found_behind_messages_of_others(late):
    late.batches.run(*flights(0, 6))
    killed = late.start(failpoints="forward.after_commit=kill")
    killed.communicate(timeout=60)
    for partition in range(3):
        late.topic.produce(*[b"other"] * 2500, partition=partition)
    assert late.stream().sent_sequence == 0
    assert late.send().sent == 0
    check_once_in_order([each for each in late.messages() if each.value != b"other"], 6)


def test_a_restored_database_is_noticed_before_anything_is_sent(late, connection):
    late.batches.run(*flights(0, 5))
    late.send()
    late.batches.run(*flights(5, 5))
    late.send()
    stream = late.stream()
    with transaction(
        connection
    ) as cursor:  # as a backup of before the second batch was sent, without its outbox
        cursor.execute(
            "update exactbatch.forward set sent_sequence = 5, last_sequence = 5, next_offsets = "
            """(select jsonb_object_agg(key, 0) from jsonb_each(next_offsets))"""
        )
    late.batches.run(*flights(10, 3))
    with pytest.raises(ResultsDiverged, match=r"has the result 10 of plan .* the ledger has no such result"):
        late.send()
    late.batches.run(*flights(13, 4))
    with pytest.raises(ResultsDiverged, match=r"has the result 10 of plan .* and the ledger has another one"):
        late.send()
    assert len(late.messages()) == 10
    assert late.send(accept_repeats=True).sent == 7
    assert len(late.messages()) == 17
    assert late.stream().last_sequence > stream.last_sequence
    late.batches.run(*flights(20, 1))
    assert late.send().sent == 1


def test_a_topic_that_was_created_again_is_refused(late, admin, make_topic):
    late.batches.run(*flights(0, 5))
    late.send()
    late.batches.run(*flights(5, 5))
    recreate(admin, lambda name: make_topic(3, name=name), late.topic)
    with pytest.raises(TopicRecreated, match="lacks some or all of the 5 results that were sent before"):
        late.send()
    assert late.messages() == []
    assert late.send(accept_repeats=True).sent == 5
    assert [each.sequence for each in sorted(late.messages(), key=lambda each: each.sequence)] == [
        6,
        7,
        8,
        9,
        10,
    ]


@pytest.mark.parametrize("waiting", [5, 50], ids=["fewer messages than it had", "more messages than it had"])
def test_a_topic_that_is_created_again_while_results_are_sent_is_noticed(
    late, admin, make_topic, monkeypatch, waiting
):
    """The forwarder has compared the ledger with the topic before: only the offsets of what it sends tell."""

    def at(failpoint: str) -> None:
        if failpoint == "forward.after_attempt":
            recreate(admin, lambda name: make_topic(3, name=name), late.topic)

    late.batches.run(*flights(0, 5))
    late.send()
    late.batches.run(*flights(5, waiting))
    with monkeypatch.context() as patch:
        patch.setattr(forwarding, "failpoint", at)
        with pytest.raises(
            TopicRecreated, match="took a message at offset 0, where the topic had others before"
        ):
            late.send()
    assert late.stream().unsent == waiting
    with pytest.raises(TopicRecreated, match="its ID was"):
        late.send()


def test_a_topic_whose_end_was_lost_is_refused_before_anything_is_sent(late):
    """An unclean election cuts a log: here, the ledger knows more of it than there is."""
    late.batches.run(*flights(0, 5))
    late.send()
    sent = late.messages()
    late.batches.run(*flights(5, 5))
    with transaction(late.connection) as cursor:
        cursor.execute(
            "update exactbatch.forward set next_offsets = "
            "(select jsonb_object_agg(key, value::bigint + 100) from jsonb_each_text(next_offsets))"
        )
    for _ in range(2):
        with pytest.raises(TopicRecreated, match="lost its newest messages.*had results up to 10"):
            late.send()
    assert late.messages() == sent


def test_results_that_retention_may_have_removed_are_not_sent_again(late, admin):
    late.batches.run(*flights(0, 5))
    late.send()
    late.batches.run(*flights(5, 5))
    killed = late.start(failpoints="forward.after_commit=kill")
    killed.communicate(timeout=60)
    assert len(late.messages()) == 10
    everything = [TopicPartition(late.topic.name, partition, OFFSET_END) for partition in range(3)]
    for removed in admin.delete_records(everything).values():
        removed.result(30)
    with pytest.raises(ResultsDiverged, match="unknown whether the topic .* ever had the results 6 to 10"):
        late.send()
    assert late.messages() == []
    assert late.send(accept_repeats=True).sent == 5


@pytest.mark.usefixtures("settles_soon")
def test_a_topic_that_does_not_exist_is_never_created(late, admin):
    late.batches.run(*flights(0, 1))
    with transaction(late.connection) as cursor:
        cursor.execute("update exactbatch.forward set topic = 'nowhere'")
    late.batches.pipeline = replace(late.pipeline, forward=replace(late.pipeline.forward, topic="nowhere"))
    with pytest.raises(TopicMissing, match="'nowhere'"):
        late.send()
    assert "nowhere" not in admin.list_topics(timeout=10).topics


def test_a_result_that_the_topic_does_not_take_is_named_before_anything_is_sent(make, admin, make_topic):
    topic = make_topic(1, max_message_bytes="5000")
    forwarding = make(Append("public.late"), "id int, name text", keyed_by=("id",))
    forwarding.batches.pipeline = replace(
        forwarding.pipeline, forward=replace(forwarding.pipeline.forward, topic=topic.name)
    )
    with transaction(forwarding.connection):
        Ledger(forwarding.connection).registry.register(forwarding.pipeline)
    forwarding.topic = topic
    forwarding.batches.run((1, "x"), (2, "y" * 6000), (3, "z"))
    with pytest.raises(ResultTooLarge, match=r'result 2 .* with the key \{"id":2\}, has 6,02\d bytes'):
        forwarding.send()
    assert forwarding.messages() == []


def test_a_batch_with_a_result_that_is_too_large_writes_nothing(make):
    forwarding = make(Append("public.late"), "id int, name text", keyed_by=("id",), max_bytes=100)
    with pytest.raises(
        ResultTooLarge, match=r'the key \{"id":2\} .* has 12\d bytes, and max_bytes of ToTopic'
    ):
        forwarding.batches.run((1, "x"), (2, "y" * 100))
    assert forwarding.rows(
        "select to_regclass('public.late') is null or not exists (select from public.late)"
    ) == [(True,)]


def test_a_null_key_in_text_is_refused(late):
    with pytest.raises(TargetMismatch, match="has null as its key, and key_format='text' cannot write it"):
        late.batches.run((None, 1, True))


def test_a_row_from_before_that_has_a_null_key_is_retracted_without_a_message(late):
    before = Batches(late.batches.connection, replace(late.batches.pipeline, forward=None))
    before.run((None, 1, True), ("A", 2, True))
    with transaction(late.connection):
        Ledger(late.connection).registry.register(late.pipeline)
    late.batches.log = {0: [("B", 1, True), ("A", 2, True)]}
    late.batches.replay((0, 0, 2))
    late.send()
    assert [(each.key, each.headers["change"]) for each in late.messages()] == [(b"B", "row")]


VALUES = {
    "smallint": ("7", "7"),
    "bigint": ("9007199254740993", "9007199254740993"),
    "numeric": ("123456789012345678901234567890.10", "123456789012345678901234567890.10"),
    "numeric(9,2)": ("1.5", "1.50"),
    "double precision": ("0.1", "0.1"),
    "real": ("16777216", "1.6777216e+07"),
    "text": ('a"\\\u2028\n', '"a\\"\\\\\u2028\\n"'),
    "boolean": ("true", "true"),
    "date": ("2026-01-31", '"2026-01-31"'),
    "timestamptz": ("2026-01-31 01:02:03.456789+02", '"2026-01-30T23:02:03.456789+00:00"'),
    "timestamp": ("2026-01-31 01:02:03", '"2026-01-31T01:02:03"'),
    "interval": ("1 day -2 hours", '"1 day -02:00:00"'),
    "uuid": ("4f1a2b3c-0000-4000-8000-000000000001", '"4f1a2b3c-0000-4000-8000-000000000001"'),
    "bytea": (b"\x00\xff", '"\\\\x00ff"'),
    "jsonb": ('{"b": [1, null], "a": 1.10}', '{"a": 1.10, "b": [1, null]}'),
    "int[]": ([1, 2], "[1,2]"),
}


def test_each_value_is_written_exactly(make):
    types = list(VALUES)
    columns = ", ".join(f"c{number} {type_}" for number, type_ in enumerate(types))
    forwarding = make(Append("public.late"), columns)
    forwarding.batches.run(tuple(VALUES[each][0] for each in types), tuple(None for _ in types))
    forwarding.send()
    first, second = sorted((each.value.decode() for each in forwarding.check()), key=len, reverse=True)
    expected = ",".join(f'"c{number}":{VALUES[each][1]}' for number, each in enumerate(types))
    assert first == "{" + expected + "}"
    assert set(json.loads(second).values()) == {None}


def test_numbers_can_be_text(make):
    forwarding = make(
        Append("public.late"), "a bigint, b numeric, c double precision, d numeric[], e int", numbers="text"
    )
    forwarding.batches.run((2**53 + 1, "1.10", 0.5, ["1.0"], 3))
    forwarding.send()
    (message,) = forwarding.check()
    assert message.value == b'{"a":"9007199254740993","b":"1.10","c":0.5,"d":["1.0"],"e":3}'


def test_numbers_of_domains_can_be_text(make, db):
    """A table of its own has domains where the pipeline has bigint and numeric."""
    db.execute("create domain amount as numeric(38,10); create domain number as bigint check (value > 0)")
    db.execute(f"create table late (a number, b amount, d amount[], {LINEAGE})")
    forwarding = make(Append("public.late"), "a bigint, b numeric(38,10), d numeric(38,10)[]", numbers="text")
    forwarding.batches.run((2**53 + 1, "1.10", [Decimal("1.0")]))
    forwarding.send()
    (message,) = forwarding.check()
    assert message.value == b'{"a":"9007199254740993","b":"1.1000000000","d":["1.0000000000"]}'


def test_what_is_no_number_in_json_is_text(make):
    forwarding = make(Append("public.late"), "a double precision, b numeric")
    forwarding.batches.run((float("nan"), "NaN"), (float("-inf"), "1"))
    forwarding.send()
    assert {each.value for each in forwarding.check()} == {
        b'{"a":"NaN","b":"NaN"}',
        b'{"a":"-Infinity","b":1}',
    }


def test_settings_of_the_login_change_no_message(make, settings, connection):
    forwarding = make(Append("public.late"), "a timestamptz, b double precision, c interval, d bytea")
    with transaction(connection) as cursor:
        for each in (
            "DateStyle = 'SQL, DMY'",
            "TimeZone = 'Asia/Tokyo'",
            "extra_float_digits = -3",
            "IntervalStyle = 'iso_8601'",
            "bytea_output = 'escape'",
        ):
            cursor.execute(f"alter role current_user set {each}")
    try:
        forwarding.batches.connection = connect(settings.postgres, application="tests", timeout=10)
        forwarding.batches.run(("2026-01-31 00:00:00+00", 0.1 + 0.2, "1 day", b"\x01"))
        forwarding.batches.connection.close()
    finally:
        with transaction(connection) as cursor:
            cursor.execute("alter role current_user reset all")
    forwarding.send()
    (message,) = forwarding.check()
    assert message.row == {
        "a": "2026-01-31T00:00:00+00:00",
        "b": 0.30000000000000004,
        "c": "1 day",
        "d": "\\x01",
    }


def test_a_replay_sends_what_it_corrects_and_nothing_else(late):
    rows = flights(0, 6)
    late.batches.run(*rows)
    late.batches.replay()
    assert late.stream().last_sequence == 6  # nothing has changed
    corrected = [("A", 0, False), *rows[1:4], ("B", 99, True), ("B", 99, True)]
    late.batches.log[0] = corrected
    replayed = late.batches.replay().batch
    late.send()
    messages = late.check()
    assert standing_rows(messages) == Counter(map(message_of, corrected))
    corrections = sorted((each for each in messages if each.sequence > 6), key=lambda each: each.sequence)
    assert {(each.headers["kind"], each.headers["batch"]) for each in corrections} == {
        ("replay", str(replayed.batch_id))
    }
    assert [(each.change, each.key, each.row["flight"]) for each in corrections] == [
        ("retracted", b"A", 0),
        ("retracted", b"B", 4),
        ("retracted", b"C", 5),
        ("row", b"A", 0),
        ("row", b"B", 99),
        ("row", b"B", 99),
    ]


def test_a_replay_that_has_fewer_of_equal_rows_retracts_the_difference(late):
    late.batches.run(*[("A", 1, True)] * 5)
    late.batches.log[0] = [("A", 1, True)] * 2 + [("A", 2, True)] * 3
    late.batches.replay()
    late.send()
    messages = late.check()
    assert Counter(each.change for each in messages) == {"row": 8, "retracted": 3}
    assert standing_rows(messages) == Counter(map(message_of, late.batches.log[0]))


def test_a_target_that_is_partitioned_by_batch_is_forwarded_and_corrected(make):
    forwarding = make(Append("public.late", layout="by_batch", min_offsets=2), keyed_by="carrier")
    forwarding.batches.run(*flights(0, 6))
    forwarding.batches.log[0] = flights(3, 6)
    forwarding.batches.replay()
    forwarding.send()
    messages = forwarding.check()
    assert Counter(each.change for each in messages) == {"row": 9, "retracted": 3}
    assert {each.row["flight"] for each in messages if each.change == "retracted"} == {0, 1, 2}


def test_lineage_can_be_part_of_the_value(make):
    forwarding = make(Append("public.late"), value=("flight", "kafka_offset", "batch_id"), keyed_by="carrier")
    forwarding.batches.run(*flights(5, 2))
    forwarding.send()
    assert sorted(each.row["kafka_offset"] for each in forwarding.check()) == [0, 1]


def test_an_upsert_sends_the_changes_of_its_target_and_tombstones(make):
    forwarding = make(Upsert("public.state", key=("id",)), "id int, name text")
    batches = forwarding.batches
    batches.run((1, "a", False), (2, "b", False), (1, "c", False))
    batches.run((2, None, True), (3, "d", False), (1, "c", False))
    batches.run((9, None, True))
    forwarding.send()
    messages = sorted(forwarding.check(), key=lambda each: each.sequence)
    assert [(each.key, each.row, each.change) for each in messages] == [
        (b'{"id":1}', {"id": 1, "name": "c"}, "row"),
        (b'{"id":2}', {"id": 2, "name": "b"}, "row"),
        (b'{"id":2}', None, "deleted"),
        (b'{"id":3}', {"id": 3, "name": "d"}, "row"),
    ]
    # A replay after a correction: one key less, one with another value, one as before.
    batches.log[0] = [(1, "c", False), (5, "e", False), (1, "c", False), *batches.log[0][3:]]
    batches.log[0][4] = (4, "d", False)
    batches.replay()
    forwarding.send()
    messages = forwarding.check()
    stored = forwarding.rows("select id, name from public.state")
    assert {
        json.loads(key)["id"]: json.loads(value)["name"] for key, value in latest_by_key(messages).items()
    } == dict(stored)
    assert {(each.change, each.key) for each in messages if each.headers["kind"] == "replay"} == {
        ("deleted", b'{"id":3}'),
        ("row", b'{"id":4}'),
        ("row", b'{"id":5}'),
    }


def test_random_changes_give_a_consumer_the_target(make):
    numbers = random.Random(draw_seed())
    forwarding = make(Upsert("public.state", key=("id",), version="at"), "id int, name text, at int")
    batches = forwarding.batches

    def change() -> tuple[Any, ...]:
        deleted = numbers.random() < 0.3
        return (
            numbers.randint(0, 9),
            None if deleted else numbers.choice("xyz"),
            numbers.randint(0, 10**9),  # no two are equal: nothing would order them
            deleted,
        )

    for _ in range(60 if LONG else 12):
        if numbers.random() < 0.7 or not batches.log:
            batches.run(*[change() for _ in range(numbers.randint(1, 8))], partition=numbers.randint(0, 1))
        else:
            partition = numbers.choice(list(batches.log))
            start = numbers.randrange(len(batches.log[partition]))
            until = numbers.randint(start + 1, len(batches.log[partition]))
            batches.log[partition][start:until] = [change() for _ in range(until - start)]
            batches.replay((partition, start, until))
        if numbers.random() < 0.5:
            forwarding.send()
    forwarding.send()
    latest = {
        json.loads(key)["id"]: json.loads(value) for key, value in latest_by_key(forwarding.check()).items()
    }
    assert latest == {
        id_: {"id": id_, "name": name, "at": at}
        for id_, name, at in forwarding.rows("select id, name, at from public.state")
    }


def test_updates_of_windows_and_their_finality_are_sent(make):
    sink = Aggregate(
        "public.hourly",
        group_by=("carrier", Window("at", "1 hour", "hour")),
        aggregates={"flights": Count(), "delay": Sum("delay")},
        allowed_lateness="1 hour",
    )
    forwarding = make(sink, "carrier text, at timestamptz, delay int")
    batches = forwarding.batches
    batches.run(("A", "2026-05-01T01:10:00Z", 5), (None, "2026-05-01T01:20:00Z", 1))
    batches.run(("A", "2026-05-01T01:50:00Z", 2))
    batches.run(("A", "2026-05-01T09:00:00Z", 3))
    batches.run(("A", "2026-05-01T01:30:00Z", 4))  # late
    forwarding.send()
    messages = sorted(forwarding.check(), key=lambda each: each.sequence)
    told = [
        (
            each.row["carrier"],
            each.row["hour"][11:13],
            each.row["flights"],
            each.row["delay"],
            each.row["final"],
            each.row["revisions"],
        )
        for each in messages
    ]
    assert sorted(told[:2], key=str) == [("A", "01", 1, 5, False, 0), (None, "01", 1, 1, False, 0)]
    assert told[2] == ("A", "01", 2, 7, False, 0)
    assert sorted(told[3:6], key=str) == [
        ("A", "01", 2, 7, True, 0),
        ("A", "09", 1, 3, False, 0),
        (None, "01", 1, 1, True, 0),
    ]
    assert told[6] == ("A", "01", 3, 11, True, 1)
    assert json.loads(messages[2].key) == {"carrier": "A", "hour": "2026-05-01T01:00:00+00:00"}
    # The late event leaves again, and the last one, on which the finality of the others rests.
    batches.log[0] = [*batches.log[0][:3], ("B", "2026-05-01T02:00:00Z", 1), ("B", "2026-05-01T02:00:00Z", 1)]
    batches.replay((0, 3, 5))
    forwarding.send()
    latest = latest_by_key(forwarding.check())
    stored = forwarding.rows(
        "select coalesce(carrier, 'null'), to_char(hour, 'HH24'), flights::int, delay::int, final, revisions::int "
        "from public.hourly"
    )
    assert sorted(
        (
            row["carrier"] or "null",
            row["hour"][11:13],
            row["flights"],
            row["delay"],
            row["final"],
            row["revisions"],
        )
        for row in map(json.loads, latest.values())
    ) == sorted(stored)


def test_a_key_whose_equal_values_look_different_is_refused(make):
    forwarding = make(Upsert("public.state", key=("id",)), "id numeric, name text")
    with pytest.raises(
        ConfigurationError, match=r"column id: equal values of its type, numeric, can look different"
    ):
        forwarding.batches.run((1, "a", False))


def test_a_shared_target_of_changes_is_not_forwarded(make, connection):
    forwarding = make(Upsert("public.state", key=("id",)), "id int, name text")
    other = replace(forwarding.pipeline, name="q", topics=("u",), forward=None)
    with (
        transaction(connection),
        pytest.raises(ConfigurationError, match="pipelines 'p' and 'q' share the target"),
    ):
        Ledger(connection).registry.register(other)


def test_a_pipeline_is_registered_with_its_topic(late, connection):
    late.batches.run(*flights(0, 3))
    without = replace(late.pipeline, forward=None)
    with (
        transaction(connection),
        pytest.raises(NotRegistered, match="forwards its results to no topic, but is reg"),
    ):
        Ledger(connection).registry.check(without)
    with (
        transaction(connection),
        pytest.raises(ConfigurationError, match="3 results are waiting for the topic"),
    ):
        Ledger(connection).registry.register(without)
    late.send()
    with transaction(connection):
        assert Ledger(connection).registry.register(without)
    assert late.stream() is None


@pytest.mark.parametrize("change", ["added", "removed", "another topic"])
def test_a_stream_is_not_changed_while_a_batch_is_published(late, connection, settings, change):
    """The batch has checked where its results go, and has not written them yet."""
    without = replace(late.pipeline, forward=None)
    elsewhere = replace(late.pipeline, forward=replace(late.pipeline.forward, topic="elsewhere"))
    registered, changed = {
        "added": (without, late.pipeline),
        "removed": (late.pipeline, without),
        "another topic": (late.pipeline, elsewhere),
    }[change]
    with transaction(connection):
        Ledger(connection).registry.register(registered)
    other = connect(settings.postgres, application="exactbatch register", timeout=10)

    def register(pipeline: Pipeline) -> bool:
        with transaction(other) as cursor:
            cursor.execute("set local lock_timeout = 200")
            return Ledger(other).registry.register(pipeline)

    with closing(other):
        with transaction(connection):
            Ledger(connection).registry.lock(registered)
            assert not register(registered)  # a deployment that changes nothing need not wait
            with pytest.raises(PostgresUnavailable, match="a lock was not granted"):
                register(changed)
            Streams(connection).check(registered)
        assert register(changed)


def test_a_renamed_pipeline_goes_on_with_its_stream(late, connection):
    late.batches.run(*flights(0, 3))
    killed = late.start(failpoints="forward.after_commit=kill")
    killed.communicate(timeout=60)
    renamed = replace(late.pipeline, name="renamed")
    with transaction(connection):
        Ledger(connection).registry.register(renamed, rename="p")
    assert forward_results(connection, late.settings, renamed).sent == 0
    check_once_in_order(late.messages(), 3)


def test_each_stream_has_a_name_of_its_own(late, connection):
    late.batches.run(*flights(0, 3))
    late.send()
    first = late.stream()
    without = replace(late.pipeline, forward=None)
    for pipeline in (without, late.pipeline):
        with transaction(connection):
            Ledger(connection).registry.register(pipeline)
    again = late.stream()
    assert (first.stream, again.stream) == tuple(
        f"exactbatch.p.{late.topic.name}.{stream.stream_id}" for stream in (first, again)
    )
    assert first.stream != again.stream
    late.batches.run(*flights(3, 2))
    assert late.send().sent == 2
    assert len(late.messages()) == 5
    renamed = replace(late.pipeline, name="renamed")
    with transaction(connection):
        Ledger(connection).registry.register(renamed, rename="p")
        assert Streams(connection).read("renamed").stream == again.stream
        Ledger(connection).registry.register(replace(late.pipeline, sink=Append("public.other")))
    assert late.stream().stream not in (first.stream, again.stream)


def test_a_row_that_is_missing_in_the_outbox_is_noticed(late, connection):
    late.batches.run(*flights(0, 5))
    with transaction(connection) as cursor:
        cursor.execute("delete from exactbatch.outbox where sequence = 3")
    with pytest.raises(
        ResultsDiverged, match="exactbatch.outbox lacks results after 0, although 5 were committed"
    ):
        late.send()
    assert late.messages() == []


def test_a_trigger_that_swallows_results_fails_the_batch(late, connection):
    with transaction(connection) as cursor:
        cursor.execute(
            "create function swallow() returns trigger language plpgsql as $$ begin return null; end $$; "
            "create trigger swallow before insert on exactbatch.outbox for each row "
            "when (new.sequence = 2) execute function swallow()"
        )
    with pytest.raises(TargetMismatch, match="it has 3 results to forward, and 2 arrived"):
        late.batches.run(*flights(0, 3))


def test_the_command_says_what_it_sent(late):
    late.batches.run(*flights(0, 5))
    told, problems = late.start("--json").communicate(timeout=60)
    assert json.loads(told) == {
        "pipeline": "p",
        "topic": late.topic.name,
        "sent": 5,
        "sent_sequence": 5,
        "unsent": 0,
    }, problems
    late.check()


def test_roles_can_do_what_forwarding_needs(deployment, connection, settings, make_topic, tmp_path):
    topic = make_topic(2)
    pipeline = Pipeline(
        name="p",
        topics=("t",),
        value=Json(COLUMNS),
        sink=Append("shop.late"),
        forward=ToTopic(topic.name, keyed_by="carrier"),
    )
    deployment.execute(
        "drop schema if exists exactbatch cascade; drop schema if exists exactbatch_staging cascade"
    )
    deployment.execute(ROLES)
    deployment.init(pipeline)
    deployment.execute(ROLES)
    job = connect(deployment.settings("job").postgres, application="tests", timeout=10)
    batches = Batches.__new__(Batches)
    batches.connection, batches.pipeline, batches.columns = job, pipeline, pipeline.value.columns
    batches.log, batches.launches = {}, 0
    batches.run(*flights(0, 5))
    batches.replay()
    assert forward_results(job, deployment.settings("job"), pipeline).sent == 5
    job.close()
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        deployment.execute("delete from exactbatch.outbox", role="reader")
    wait_for_settled_partitions(KafkaBroker(settings.kafka), topic.name)
    check_once_in_order(committed(settings.kafka, topic.name), 5)


TRANSFORMED = "select carrier, count(*) as flights from records group by carrier"


@pytest.mark.parametrize("kind", ["append", "by_batch", "transform", "aggregate"])
def test_a_batch_of_spark_reaches_the_topic(world, replays, make_topic, make_pipeline, kind):
    """Even where rows would otherwise be attached as a partition."""
    topic, target = make_topic(2), make_topic(3)
    for partition in range(2):
        topic.produce(
            *(json.dumps({"carrier": "ABC"[each % 3], "flight": each}).encode() for each in range(50)),
            partition=partition,
        )
    table = f'public."{topic.name}"'
    sinks = {
        "append": Append(table),
        "by_batch": Append(table, layout="by_batch", min_offsets=10),
        "transform": Append(table, lineage="batch"),
        "aggregate": Aggregate(table, group_by=("carrier",), aggregates={"flights": Count()}),
    }
    pipeline = make_pipeline(
        topic,
        value=Json("carrier text, flight int"),
        sink=sinks[kind],
        transform=TRANSFORMED if kind == "transform" else None,
        forward=ToTopic(target.name, keyed_by="carrier"),
    )
    world.run(pipeline)
    replays.run(pipeline, ranges((10, 20), topic=topic))
    topic.produce(b'{"carrier": "D", "flight": 1}')
    world.run(pipeline)
    forward_results(world.connection, world.settings, pipeline)
    wait_for_settled_partitions(KafkaBroker(world.settings.kafka), target.name)
    messages = committed(world.settings.kafka, target.name)
    check_once_in_order(messages, len(messages))
    columns = "carrier, flight" if kind in ("append", "by_batch") else "carrier, flights"
    stored = world.rows(f"select row_to_json(r)::text from (select {columns} from {table}) r")
    standing = latest_by_key(messages).values() if kind == "aggregate" else standing_rows(messages).elements()
    values = [each if kind == "aggregate" else each[1] for each in standing]
    assert sorted(values) == sorted(text.encode() for (text,) in stored)
    assert len(messages) < 110  # the replay corrected nothing


def test_the_status_says_what_waits(world, make_topic, make_pipeline):
    topic, target = make_topic(), make_topic()
    topic.produce(record(1), record(2))
    pipeline = make_pipeline(topic, forward=ToTopic(target.name))
    batch = world.run(pipeline).batch
    found = load_status(world.connection, world.log, pipeline).forwarding
    assert (found.topic, found.sent_sequence, found.unsent, found.oldest, found.sent_at) == (
        target.name,
        0,
        2,
        batch.committed_at,
        None,
    )
    gauges = {each.measure: each.value for each in measure(world.connection, world.log, pipeline.name)}
    assert gauges["unsent_results"] == 2
    assert 0 <= gauges["unsent_age"] < 600
    forward_results(world.connection, world.settings, pipeline)
    found = load_status(world.connection, world.log, pipeline)
    assert (found.forwarding.unsent, found.forwarding.oldest) == (0, None)
    assert found.as_json()["forwarding"]["sent_sequence"] == 2
    assert str(found.forwarding) == f"the topic {target.name} has all 2 results"


def test_the_task_of_the_dag_sends_what_waits_and_is_skipped_then(late, monkeypatch, capsys):
    monkeypatch.setattr("exactbatch.airflow.tasks.report_batch.load_pipeline", lambda _: late.pipeline)
    monkeypatch.setattr(Connections, "settings", lambda _: late.settings)
    with DAG("p"):
        task = forward_task("pipelines.p:p", Connections()).operator
    late.batches.run(*flights(0, 5))
    task.python_callable()
    assert "5 results sent to the topic" in capsys.readouterr().out
    late.check()
    with pytest.raises(AirflowSkipException, match="has all results"):
        task.python_callable()


def test_the_task_is_skipped_if_another_forwarder_takes_over(late, small, monkeypatch):
    """A backfill's run may forward beside a scheduled one, or `exactbatch forward`: neither run has failed."""
    others = iter([late.send])

    def at(failpoint: str) -> None:
        if failpoint == "forward.after_confirm":
            for send in others:
                send()

    monkeypatch.setattr("exactbatch.airflow.tasks.report_batch.load_pipeline", lambda _: late.pipeline)
    monkeypatch.setattr(Connections, "settings", lambda _: late.settings)
    monkeypatch.setattr(forwarding, "failpoint", at)
    with DAG("p"):
        task = forward_task("pipelines.p:p", Connections()).operator
    late.batches.run(*flights(0, 10))
    with pytest.raises(
        AirflowSkipException, match="another forwarder has taken over the results of pipeline 'p'"
    ):
        task.python_callable()
    assert standing_rows(late.check()) == Counter(map(message_of, flights(0, 10)))
