"""Compare the producers' account with the log, the ledger, the auditor and the targets."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from exactbatch import Pipeline
from exactbatch.audit.audit_result import AuditReport
from exactbatch.forwarding.sent import wait_for_settled_partitions
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, Streams
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings
from soak.pipelines import PARTITIONS, SHORT_TOPIC, TOPIC
from soak.producer import Account, Sent
from support.forwarded import check_once_in_order, committed, latest_by_key
from support.reference import LogRecord, Row, appended, by_hour, events, is_rejected, last, read_log

_COLUMNS = "id, carrier, at, delay, version"
_COUNTS = ("records", "rows", "rejected", "tombstones", "dropped")


@dataclass(frozen=True)
class Accounted:
    """The outcomes of a pipeline's records; for a transform, `rows` counts records that have rows."""

    produced: int
    rows: int
    rejected: int
    tombstones: int
    dropped: int
    lost: int


def check_log(account: Account, properties: Mapping[str, Any], removed: Mapping[int, int]) -> None:
    """The log holds what the producers say: each committed record once, where they say, and no aborted one.

    A transaction whose outcome they never learned is taken from the log, whole or not at all.
    """
    for topic in (TOPIC, SHORT_TOPIC):
        starts = removed if topic == SHORT_TOPIC else {}
        log = read_log(dict(properties), topic, PARTITIONS, starts)
        found = {(each.partition, each.offset): each for each in log}
        said = {(each.partition, each.offset): each for each in account.of(topic)}
        assert len(said) == len(account.of(topic)), "two records at one offset"
        unknown = [(each[1], each[2]) for each in account.unknown if each[0] == topic]
        for place in sorted(found.keys() - said.keys()):
            record = found[place]
            assert (record.key, record.value) in unknown, f"{topic} {place}: nobody produced {record}"
            unknown.remove((record.key, record.value))
            account.committed.append(Sent(topic, record))
            said[place] = record
        expected = {place: each for place, each in said.items() if place[1] >= starts.get(place[0], 0)}
        assert expected.keys() == found.keys(), (
            f"{topic}: records that the broker took are not in its log: "
            f"{sorted(expected.keys() - found.keys())[:10]}"
        )
        for place, each in expected.items():
            assert found[place] == each, f"{topic} {place}: expected {each}, found {found[place]}"


def check_pipeline(
    pipeline: Pipeline,
    account: Account,
    connection: Any,
    audits: AuditReport,
    removed: Mapping[int, int],
) -> Accounted:
    """Each record of the account is a row, a reject, a tombstone, dropped, or lost; and the target is right."""
    records = account.of(pipeline.known_topics(())[0])
    with transaction(connection) as cursor:
        coverage = Ledger(connection).coverage.read_all(pipeline)
        losses = [each for each in coverage if each.kind == "loss"]
        for each in losses:
            assert pipeline.on_loss == "skip", f"{pipeline.name}: {each} is recorded as lost"
            assert each.until_offset <= removed.get(each.partition, 0), f"{each} was never removed"
        lost = {
            (each.partition, offset)
            for each in losses
            for offset in range(each.from_offset, each.until_offset)
        }
        rest = [each for each in records if (each.partition, each.offset) not in lost]
        counts, advanced = _counts(cursor, pipeline), _advanced(cursor, pipeline)
        cursor.execute(
            'select partition, "offset" from exactbatch.rejected_record where pipeline = %s', (pipeline.name,)
        )
        rejected = sorted(tuple(each) for each in cursor.fetchall())
        target = _target(cursor, pipeline)
    bad = [each for each in rest if is_rejected(each)]
    null = [each for each in rest if each.value is None]
    kept = [each for each in events(rest) if pipeline.name != "transform" or each.id % 3]
    name = pipeline.name
    _same(f"{name}: rejects", rejected, [(each.partition, each.offset) for each in bad])
    _same(f"{name}: target", target, _expected(pipeline, rest))
    # A broker that is killed may forget what it removed last. What an advance has recorded as lost is there again
    # then, and counts once a replay takes it.
    back = [each for each in rest if (each.partition, each.offset) not in advanced]
    assert pipeline.on_loss == "skip" or not back, f"{name}: no advance has {back[:5]}"
    assert counts["records"] == len(rest) - len(back), (
        f"{name}: {len(rest)} records in, {len(back)} of them by replays alone, {counts} in committed advances"
    )
    assert counts["rejected"] == len(bad) - sum(map(is_rejected, back)), (name, len(bad), back, counts)
    if pipeline.on_loss == "fail":
        assert audits.records == len(rest), (name, len(rest), audits)
    assert audits.rejected == len(bad), (name, len(bad), audits)
    keeps_nulls = pipeline.traits.keeps_deletes
    accounted = Accounted(
        len(records),
        len(kept) + (len(null) if keeps_nulls else 0),
        len(bad),
        counts["tombstones"] + sum(each.value is None for each in back),
        counts["dropped"],
        len(records) - len(rest),
    )
    total = accounted.rows + accounted.rejected + accounted.tombstones + accounted.dropped + accounted.lost
    assert total == len(records), f"{name}: expected {len(records)} records accounted for, found {accounted}"
    return accounted


def check_results(pipeline: Pipeline, connection: Any, settings: Settings) -> int:
    """A read_committed consumer has each result of a pipeline once, those of each key in order, and they make the
    target. Return how many there are.
    """
    assert pipeline.forward is not None
    topic = pipeline.forward.topic
    wait_for_settled_partitions(KafkaBroker(settings.kafka), topic)
    messages = committed(settings.kafka, topic)
    with transaction(connection) as cursor:
        stream = Streams(connection).read(pipeline.name)
        rows = _target(cursor, pipeline)
    assert stream is not None
    check_once_in_order(messages, stream.last_sequence)
    found = []
    for key, value in latest_by_key(messages).items():
        assert key is not None
        row = json.loads(value)
        row["at"] = row["at"] and datetime.fromisoformat(row["at"])
        found.append((json.loads(key)["id"], *row.values()))
    _same(f"{topic}: rows of the target", sorted(found, key=_by_key), sorted(rows, key=_by_key))
    return stream.last_sequence


def _by_key(row: Row) -> Any:
    return row[0]


def _counts(cursor: Any, pipeline: Pipeline) -> dict[str, int]:
    """The sums of what the committed advances say, and of the ranges that were committed by themselves."""
    cursor.execute(
        "select sum(records)::bigint as records, sum(rows)::bigint as rows, sum(rejected)::bigint as rejected, "
        "sum(tombstones)::bigint as tombstones, sum(dropped)::bigint as dropped from ("
        "select records, rows, rejected, tombstones, dropped from exactbatch.batch "
        "where pipeline = %(name)s and kind = 'advance' and status = 'committed' union all "
        "select r.records, r.rows, r.rejected, r.tombstones, 0 from exactbatch.batch_range r "
        "join exactbatch.batch b using (batch_id) where b.pipeline = %(name)s and b.kind = 'advance' "
        "and b.status <> 'committed' and r.records is not null) done",
        {"name": pipeline.name},
    )
    row = cursor.fetchone()
    return {name: getattr(row, name) or 0 for name in _COUNTS}


def _advanced(cursor: Any, pipeline: Pipeline) -> set[tuple[int, int]]:
    """The offsets of committed advances, and of the ranges that were committed by themselves."""
    cursor.execute(
        "select r.partition, r.from_offset, r.until_offset from exactbatch.batch_range r "
        "join exactbatch.batch b using (batch_id) where b.pipeline = %s and b.kind = 'advance' "
        "and (b.status = 'committed' or r.records is not null)",
        (pipeline.name,),
    )
    return {
        (partition, offset)
        for partition, from_offset, until_offset in cursor.fetchall()
        for offset in range(from_offset, until_offset)
    }


def _target(cursor: Any, pipeline: Pipeline) -> list[Row]:
    columns = {
        "upsert": f"id as its_key, {_COLUMNS}",
        "aggregate": "carrier, hour, events, delay, best, worst",
        "transform": f"kafka_partition, kafka_offset, copy, {_COLUMNS}",
    }.get(pipeline.name, f"kafka_partition, kafka_offset, {_COLUMNS}")
    # The three of a Route have each row once, together.
    cursor.execute(
        " union all ".join(f"select {columns} from {part.target}" for part in pipeline.traits.parts)
    )
    return sorted((tuple(each) for each in cursor.fetchall()), key=repr)


def _expected(pipeline: Pipeline, records: list[LogRecord]) -> list[Row]:
    match pipeline.name:
        case "upsert":
            rows = [key + row for key, row in last(records).items()]
        case "aggregate":
            rows = [key + row for key, row in by_hour(records).items()]
        case "transform":
            rows = [
                (each.record.partition, each.record.offset, copy, *each.row)
                for each in events(records)
                if each.id % 3
                for copy in range(1, 3 - each.id % 2)
            ]
        case _:
            rows = [key + row for key, row in appended(records).items()]
    return sorted(rows, key=repr)


def _same(what: str, found: list[Any], expected: list[Any]) -> None:
    if found != expected:
        missing, strange = _without(expected, found), _without(found, expected)
        raise AssertionError(
            f"{what}: expected {len(expected)}, found {len(found)}; missing {len(missing)}: {missing[:5]}; "
            f"strange {len(strange)}: {strange[:5]}"
        )


def _without(these: list[Any], those: list[Any]) -> list[Any]:
    there = set(those)
    return [each for each in these if each not in there]
