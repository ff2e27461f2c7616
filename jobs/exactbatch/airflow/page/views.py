"""Build the JSON that the page receives: summaries, strips and batches. Pure.

A strip has lists instead of objects, because there are hundreds of them: a segment is [from, until, kind, batch, last
batch, merged].
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from exactbatch.airflow.connections import application_url
from exactbatch.airflow.page.brokers import LogState, compute_retention_left
from exactbatch.airflow.page.dags import PipelineDag, TaskTime
from exactbatch.airflow.page.first_records import find_oldest_unprocessed
from exactbatch.errors.explanation import find_hint
from exactbatch.kafka.identity import may_be_same
from exactbatch.ledger.definition import Definition
from exactbatch.ledger.overview_rows import ListedBatch, PartitionPosition, RejectedRecord
from exactbatch.ledger.row_types import STAGES, Batch
from exactbatch.offsets import OffsetRange
from exactbatch.operations.coverage_strip import DrawnStrip, Segment
from exactbatch.operations.lag import PipelineLag
from exactbatch.operations.overview import LedgerSummary, State, find_lag, find_state, waiting_since
from exactbatch.operations.unprocessed import Forwarding, is_overdue
from exactbatch.planning.freeze_replay import Preview


def build_overview_view(
    dag: PipelineDag,
    summary: LedgerSummary | None,
    state: LogState | None,
    problem: str | None,
    now: datetime,
) -> dict[str, Any]:
    """Return the row of a pipeline in the list of all; `problem` is why its ledger cannot be read."""
    if summary is None or state is None:
        return {
            **_of_dag(dag),
            "state": "unknown" if problem else "not registered",
            "error": {"error": "ledger", "message": problem} if problem else None,
        }
    return {**_of_dag(dag), **_summary(dag, summary, state, now)}


def build_pipeline_view(
    dag: PipelineDag, summary: LedgerSummary, state: LogState, forwarding: Forwarding | None, now: datetime
) -> dict[str, Any]:
    """Return a pipeline with its registration, partitions in total, and how far its results are sent to a topic."""
    definition, in_flight = summary.definition, summary.in_flight(now)
    return {
        **_of_dag(dag),
        **_summary(dag, summary, state, now),
        "target": definition.target,
        "other_targets": definition.others,
        "sink": definition.sink,
        "lineage": definition.lineage,
        "topics": summary.topics,
        "partitions": len(summary.positions),
        "in_flight": in_flight.batch_id if in_flight else None,
        "forwarding": None if forwarding is None else _forwarding(forwarding, now),
    }


def _forwarding(forwarding: Forwarding, now: datetime) -> dict[str, Any]:
    oldest = forwarding.oldest
    return {
        "topic": forwarding.topic,
        "sent_sequence": forwarding.sent_sequence,
        "unsent": forwarding.unsent,
        "unsent_seconds": None if oldest is None else (now - oldest).total_seconds(),
        "sent_at": _time(forwarding.sent_at),
    }


def _of_dag(dag: PipelineDag) -> dict[str, Any]:
    return {
        "dag_id": dag.dag_id,
        "pipeline": dag.pipeline,
        "is_paused": dag.is_paused,
        "kafka": dag.kafka,
        "postgres": dag.postgres,
    }


def _summary(dag: PipelineDag, summary: LedgerSummary, state: LogState, now: datetime) -> dict[str, Any]:
    topics = summary.topics
    is_known = all(topic in state.logs for topic in topics)
    logs = [log for topic in topics for log in state.logs.get(topic, ())]
    lag = find_lag(summary, logs, state.taken_at) if is_known else None
    left = compute_retention_left(state, summary.stored, now) if lag is not None and lag.lag else None
    since = None if lag is None else waiting_since(summary, lag)
    newest = summary.committed or summary.newest
    word = find_state(summary, lag, is_paused=dag.is_paused, now=now)
    freshness = summary.definition.freshness
    oldest = find_oldest_unprocessed(logs, summary.stored, state.first.get(dag.pipeline, {}))
    return {
        "state": word,
        # What is not known is not overdue: the state says that Kafka does not answer.
        "overdue": is_overdue(freshness, oldest, now),
        "freshness_seconds": None if freshness is None else freshness.total_seconds(),
        "oldest_seconds": None if freshness is None or oldest is None else (now - oldest).total_seconds(),
        "lag": None if lag is None else lag.lag,
        "held_back": None if lag is None else lag.held_back,
        "lost": None if lag is None else lag.lost,
        "lag_seconds": (now - since).total_seconds() if since else None,
        "records_per_second": summary.records_per_second(now),
        "retention_seconds": None if left is None else left.total_seconds(),
        "newest": None if newest is None else _batch(newest),
        "error": _error(word, summary, lag),
        "kafka_error": next((state.errors[topic] for topic in topics if topic in state.errors), None),
        "kafka_at": _time(state.taken_at),
    }


def _error(state: State, summary: LedgerSummary, lag: PipelineLag | None) -> dict[str, Any] | None:
    """Return why a pipeline is in a state; None if it is no bad one. Only the failure of a batch has a `batch_id`."""
    if lag is not None and lag.contradiction is not None and state in ("losing data", "cannot plan"):
        return {"error": "log", "message": lag.contradiction, "failures": 0, "retryable": False}
    if summary.failure is None:
        return None
    batch, failure = summary.failure
    return {
        "batch_id": batch.batch_id,
        "run_id": batch.run_id,
        "kind": batch.kind,
        "error": failure.error,
        "message": failure.message,
        "failures": failure.failures,
        "retryable": failure.retryable,
        "failed_at": _time(failure.failed_at),
        "hint": find_hint(failure.error),
    }


def build_partition_views(positions: Sequence[PartitionPosition], state: LogState) -> list[dict[str, Any]]:
    """Return for each partition what the ledger and the log have; what the log has is null if it is not known."""
    logs = {log.topic_partition: log for partitions in state.logs.values() for log in partitions}
    views = []
    for each in positions:
        log = logs.get(each.topic_partition)
        if log is not None and not may_be_same(each.topic, each.topic_id, log.topic_id):
            log = None  # the topic was created again
        views.append(
            {
                "topic": each.topic,
                "topic_id": str(each.topic_id),
                "partition": each.partition,
                "first_offset": each.first_offset,
                "next_offset": each.next_offset,
                "horizon": each.horizon,
                "earliest": log and log.earliest,
                "last_stable": log and log.last_stable,
                "high_watermark": log and log.high_watermark,
            }
        )
    return views


def build_strip_view(drawn: DrawnStrip) -> dict[str, Any]:
    """Return a strip."""
    return {
        "step": drawn.strip.step,
        "is_exact": drawn.is_exact,
        "segments": list(map(_segment, drawn.segments)),
        "exceptions": list(map(_segment, drawn.exceptions)),
        "in_flight": [
            [each.from_offset, each.until_offset, each.kind, each.batch_id] for each in drawn.in_flight
        ],
        "rejects": list(map(list, drawn.rejects)),
    }


def _segment(each: Segment) -> list[Any]:
    return [
        each.from_offset,
        each.until_offset,
        each.kind,
        each.batch_id,
        each.last_batch_id,
        int(each.is_merged),
    ]


def build_batch_view(
    listed: ListedBatch,
    times: Mapping[str, Sequence[TaskTime]],
    *,
    spark_history_url: str | None,
    may_read_logs: bool,
) -> dict[str, Any]:
    """Return a batch with its counts, the seconds of its stages and tasks, Spark's application and its latest error."""
    batch, failure = listed.batch, listed.failure
    return {
        **_batch(batch),
        "ranges": listed.ranges,
        "offsets": listed.offsets,
        "stages": [
            [stage, batch.stages[stage] / 1000] for stage in STAGES if batch.stages and stage in batch.stages
        ],
        "application": batch.application_id,
        "application_url": application_url(spark_history_url, batch.application_id),
        "tasks": [
            [each.task_id, each.state, each.tries, each.seconds] for each in times.get(batch.run_id or "", ())
        ],
        "error": None
        if failure is None
        else {
            "error": failure.error,
            "message": failure.message if may_read_logs else None,
            "failures": failure.failures,
            "retryable": failure.retryable,
        },
    }


def _batch(batch: Batch) -> dict[str, Any]:
    return {
        "batch_id": batch.batch_id,
        "kind": "backfill" if batch.kind == "replay" and batch.origin == "backfill" else batch.kind,
        "origin": batch.origin,
        "status": batch.status,
        "run_id": batch.run_id,
        "records": batch.records,
        "rows": batch.rows,
        "rejected": batch.rejected,
        "tombstones": batch.tombstones,
        "dropped": batch.dropped,
        "planned_at": _time(batch.planned_at),
        "committed_at": _time(batch.committed_at),
        "seconds": batch.seconds,
    }


def build_record_view(record: RejectedRecord) -> dict[str, Any]:
    """Return a rejected record: key and value as text where they are UTF-8, and in base64 otherwise."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "reason": record.reason,
        "batch_id": record.batch_id,
        "headers": record.headers,
        "key": _content(record.key, record.key_bytes),
        "value": _content(record.value, record.value_bytes),
    }


def preview_view(preview: Preview, definition: Definition) -> dict[str, Any]:
    """Return what a replay would retract and read again."""
    plan = preview.plan
    return {
        "target": definition.target,
        "other_targets": definition.others,
        "retracts": preview.retracts,
        "is_derived": preview.retracts and definition.sink != "append",
        "rows": preview.rows,
        "rejects": sum(each.rejects for each in preview.retracted),
        "offsets": sum(map(len, plan.ranges)),
        "ranges": [
            {
                **_range(each.range),
                "rows": each.rows,
                "rejects": each.rejects,
                "batches": list(each.batch_ids[:20]),
                "all_batches": len(each.batch_ids),
            }
            for each in preview.retracted[:100]
        ],
        "all_ranges": len(preview.retracted),
        "removed": list(map(_range, plan.removed)),
        "compacted": list(map(_range, plan.compacted)),
        "widened": [{**_range(each.range), "batch_id": each.batch_id} for each in plan.widened[:100]],
        "missing_index": preview.missing_index,
    }


def _range(each: OffsetRange) -> dict[str, Any]:
    return {
        "topic": each.topic,
        "partition": each.partition,
        "from_offset": each.from_offset,
        "until_offset": each.until_offset,
    }


def _content(value: bytes | None, size: int | None) -> dict[str, Any] | None:
    if value is None:
        return None
    try:
        # A character that was cut in two does not make text binary.
        text = value.decode("utf-8", "strict" if size == len(value) else "ignore")
        return {"text": text, "bytes": size, "is_cut": size != len(value)}
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode(), "bytes": size, "is_cut": size != len(value)}


def _time(when: datetime | None) -> str | None:
    return None if when is None else when.isoformat()
