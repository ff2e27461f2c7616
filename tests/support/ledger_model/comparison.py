"""The ledger and the target in Postgres, compared with the model."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from support.ledger_model.log import TOPIC_IDS, FakeLog, Key, written
from support.ledger_model.model import LOSS, Loss, Model


def select_rows(cursor: Any, query: str) -> list[tuple[Any, ...]]:
    cursor.execute(query)
    return list(map(tuple, cursor.fetchall()))


def results_of(
    log: FakeLog, model: Model, offsets: set[tuple[Key, int]]
) -> Iterator[tuple[tuple[Key, int, int], list[str] | None]]:
    """Yield what the batches made of the records at these offsets: rows, or None for a reject."""
    for key, offset in offsets:
        batch_id = model.owner.get(key, {}).get(offset)
        record = log.records[key][offset]
        if record is None or not isinstance(batch_id, int):
            continue
        program = model.batches[batch_id].program
        count = record.rows_by(program)
        rows = None if count is None else [written(key, offset, program, n) for n in range(count)]
        yield (key, offset, batch_id), rows


def compare_coverage(cursor: Any, models: Sequence[Model]) -> None:
    """Compare coverage and stored offsets, which have no gap and no overlap."""
    found: dict[tuple[Any, ...], dict[int, int | Loss]] = {}
    for pipeline, topic, partition, topic_id, from_offset, until_offset, batch_id in select_rows(
        cursor,
        "select pipeline, topic, partition, topic_id, lower(offsets), upper(offsets), batch_id "
        "from exactbatch.coverage",
    ):
        offsets = found.setdefault((pipeline, topic, partition, topic_id), {})
        for offset in range(from_offset, until_offset):
            assert offset not in offsets, f"{pipeline}, {topic}[{partition}]: {offset} is covered twice"
            offsets[offset] = LOSS if batch_id is None else batch_id
    assert found == {
        (model.pipeline.name, *key, TOPIC_IDS[key[0]]): offsets
        for model in models
        for key, offsets in model.owner.items()
        if offsets
    }
    stored = {
        tuple(where): next_offset
        for *where, next_offset in select_rows(
            cursor,
            "select pipeline, topic, partition, topic_id, next_offset from exactbatch.stored_offset",
        )
    }
    assert stored == {
        (model.pipeline.name, *key, TOPIC_IDS[key[0]]): next_offset
        for model in models
        for key, next_offset in model.stored.items()
    }
    # Whatever the model makes of the batches: there is no gap, and nothing beyond the stored offset.
    for model in models:
        for key, began in model.began.items():
            where = (model.pipeline.name, *key, TOPIC_IDS[key[0]])
            offsets = found.get(where, {})
            assert [each for each in range(began, stored[where]) if each not in offsets] == []
            assert max(offsets, default=-1) < stored[where]


def compare_batches(cursor: Any, models: Sequence[Model], log: FakeLog) -> None:
    """Compare the batches, their ranges and their counts."""
    found = select_rows(
        cursor,
        "select batch_id, pipeline, kind, origin, status, run_id, generation, clear_number, "
        "run_started_at, records, rows, rejected, tombstones from exactbatch.batch order by 1",
    )
    found_ranges = select_rows(
        cursor,
        "select batch_id, topic, partition, from_offset, until_offset, topic_id, records "
        "from exactbatch.batch_range order by 1, 2, 3, 4",
    )
    batches: list[tuple[Any, ...]] = []
    ranges: list[tuple[Any, ...]] = []
    for model in models:
        for each in model.batches.values():
            results: list[int | None] = []
            for key, spans in each.ranges.items():
                for span in spans:
                    read = [record for record in log.records[key][slice(*span)] if record is not None]
                    results += [record.rows_by(each.program) for record in read]
                    count = len(read) if each.status == "committed" else None
                    ranges.append((each.batch_id, *key, *span, TOPIC_IDS[key[0]], count))
            counts: tuple[int | None, ...] = (None,) * 4
            if each.status == "committed":
                counts = len(results), sum(n or 0 for n in results), results.count(None), results.count(0)
            about: tuple[Any, ...] = (None, 0, 0, None)
            if each.run is not None:
                about = each.run.run_id, each.generation, each.run.clear_number, each.run.started_at
            what = each.kind, each.origin, each.status
            batches.append((each.batch_id, model.pipeline.name, *what, *about, *counts))
    assert found == sorted(batches)
    assert found_ranges == sorted(ranges)


def compare_times(cursor: Any, models: Sequence[Model]) -> None:
    """Compare the offsets that times were resolved to."""
    found: dict[tuple[str, str, int], dict[datetime, int]] = {}
    for *where, at, offset in select_rows(
        cursor,
        'select pipeline, topic, partition, boundary, "offset" from exactbatch.time_boundary order by 4',
    ):
        found.setdefault(tuple(where), {})[at] = offset
    for each in found.values():
        assert list(each.values()) == sorted(each.values()), "neighbouring intervals overlap"
    assert found == {
        (model.pipeline.name, *key): times for model in models for key, times in model.times.items() if times
    }


def compare_target(cursor: Any, models: Sequence[Model], log: FakeLog, lineage: str) -> None:
    """Compare rows and rejects."""
    rows: list[tuple[Any, ...]] = []
    rejects: list[tuple[Any, ...]] = []
    for model in models:
        every = {(key, offset) for key, offsets in model.owner.items() for offset in offsets}
        for (key, offset, batch_id), values in results_of(log, model, every):
            if values is None:
                reject = model.pipeline.name, *key, offset, batch_id, TOPIC_IDS[key[0]]
                rejects.append(reject)
                continue
            record = log.records[key][offset]
            assert record is not None
            where = (*key, offset, record.at) if lineage == "record" else ()
            rows += [(value, batch_id, *where) for value in values]
    where_from = (
        ", kafka_topic, kafka_partition, kafka_offset, kafka_timestamp" if lineage == "record" else ""
    )
    found = select_rows(cursor, f"select name, batch_id{where_from} from public.target")
    assert sorted(found) == sorted(rows)
    found = select_rows(
        cursor,
        'select pipeline, topic, partition, "offset", batch_id, topic_id from exactbatch.rejected_record',
    )
    assert sorted(found) == sorted(rejects)
