"""What the two workers of a task that stages a transform in one pass hand over and count."""

from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exactbatch import OffsetRange
from exactbatch.batch.rows.rejected import REJECT_SCHEMA
from exactbatch.batch.staging.task import Staged
from exactbatch.batch.transform.one_pass import (
    PLACE,
    HandOver,
    OnePass,
    Passed,
    RecordsInOrder,
    UnchangedColumns,
    passed,
    staged_batch,
)
from exactbatch.errors import ReadFailed, StagedRowsDiffer

ID = UUID(int=1)
Row = tuple[str | None, int | None, int | None]
# A task may read two splits of one partition, and not in the order of their offsets.
RANGES = [
    OffsetRange("a", 0, 10, 20, ID),
    OffsetRange("b", 0, 0, 10, ID),
    OffsetRange("a", 1, 0, 5, ID),
    OffsetRange("a", 0, 0, 10, ID),
]
RECORDS: list[Row] = [
    (range_.topic, range_.partition, offset)
    for range_ in RANGES
    for offset in range(range_.from_offset, range_.until_offset)
]


def batch(rows: list[Row]) -> pa.RecordBatch:
    topics, partitions, offsets = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.RecordBatch.from_arrays(
        [pa.array(topics, pa.string()), pa.array(partitions, pa.int32()), pa.array(offsets, pa.int64())],
        ["kafka_topic", "kafka_partition", "kafka_offset"],
    )


def counted(*batches: list[Row]) -> int | None:
    counter = RecordsInOrder(RANGES)
    for rows in batches:
        counter.add(batch(rows))
    return counter.count


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=len(RECORDS), max_size=len(RECORDS)), st.data())
def test_records_whose_rows_come_in_the_order_of_the_log_are_counted(times, data):
    """Each record gives some rows, or none, and the rows are cut into batches anywhere."""
    rows = [record for record, number in zip(RECORDS, times, strict=True) for _ in range(number)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    batches = [rows[start:end] for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    assert counted(*batches) == len(set(rows))


@settings(deadline=None)
@given(st.lists(st.sampled_from(RECORDS), max_size=12))
def test_a_count_is_given_only_if_it_is_right(rows):
    assert counted(rows) in (None, len(set(rows)))
    assert counted(*([row] for row in rows)) == counted(rows)


@pytest.mark.parametrize(
    "rows",
    [
        [("a", 0, 12), ("a", 0, 11)],
        [("a", 0, 12), ("a", 0, 13), ("a", 0, 12)],
        [("b", 0, 1), ("a", 0, 12)],
        [("a", 0, 5), ("a", 0, 15)],
        [("a", 0, 15), ("b", 0, 1), ("a", 0, 16)],
        [("a", 0, 20)],
        [("a", 1, 5)],
        [("c", 0, 1)],
        [("a", 2, 1)],
        [(None, 0, 12)],
        [("a", None, 12)],
        [("a", 0, None)],
    ],
)
def test_rows_out_of_order_or_of_no_record_of_the_task_are_not_counted(rows):
    assert counted(rows) is None
    assert counted(*([row] for row in rows)) is None
    assert counted([RECORDS[0]], rows, [RECORDS[-1]]) is None


def reject(offset: int) -> pa.RecordBatch:
    row = {
        **dict.fromkeys(REJECT_SCHEMA.names),
        "topic": "a",
        "partition": 0,
        "offset": offset,
        "task_attempt": 7,
    }
    return pa.RecordBatch.from_pylist([row], REJECT_SCHEMA)


def test_rejects_and_outcomes_are_handed_over_and_removed(tmp_path: Path):
    split = Staged(RANGES[0], 7, records=10, rows=8, rejects=2, tombstones=0)
    decoding, staging = HandOver("ab", 7, tmp_path), HandOver("ab", 7, tmp_path)
    assert staging.rejects() is None
    decoding.keep([reject(10)])
    decoding.keep([reject(11), reject(12)])
    decoding.finish([split])
    assert staging.outcomes() == [split]
    read = staging.rejects()
    assert read is not None
    assert [row["offset"] for each in read for row in each.to_pylist()] == [10, 11, 12]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    staging.remove()
    staging.remove()
    assert not list(tmp_path.iterdir())


def test_attempts_do_not_share_files(tmp_path: Path):
    HandOver("ab", 7, tmp_path).finish([])
    for other in (HandOver("ab", 8, tmp_path), HandOver("ac", 7, tmp_path)):
        with pytest.raises(FileNotFoundError):
            other.outcomes()


def test_an_error_of_the_worker_that_decodes_is_the_outcome():
    split = Staged(RANGES[0], 7, records=10, rows=8, rejects=2, tombstones=0)
    error = ReadFailed("bad")
    assert passed([split, error], 7, 8, 8) is error
    assert passed([split], 7, 8, None) == Passed(7, (split,), 8, None)


def test_splits_come_in_the_order_of_the_log():
    splits = [Staged(range_, 7, 0, 0, 0, 0) for range_ in RANGES]
    done = [Passed(7, tuple(splits[:2]), 5, 0), Passed(8, tuple(splits[2:]), 6, 0)]
    staged = staged_batch(done)
    assert [split.range for split in staged.splits] == sorted(RANGES)
    assert staged.rows == {7: 5, 8: 6}


def kept_rows(records: list[Row], hand_over: HandOver) -> None:
    """Leave the rows of records of one range as the worker that decodes does."""
    rows = batch(records).append_column("name", pa.array([f"{record}" for record in records], pa.string()))
    hand_over.keep_rows(rows)


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=len(RECORDS), max_size=len(RECORDS)), st.data())
def test_unchanged_columns_are_those_of_the_record_of_each_row(tmp_path_factory, times, data):
    """Batches of decoded rows and of those of the transform are cut anywhere, the former within ranges."""
    hand_over = HandOver("ab", 7, tmp_path_factory.mktemp("pass"))
    for range_ in RANGES:
        of_range = [record for record in RECORDS if record[:2] == range_.topic_partition]
        of_range = [
            record for record in of_range if range_.from_offset <= (record[2] or 0) < range_.until_offset
        ]
        cut = data.draw(st.integers(1, len(of_range)))
        for part in (of_range[:cut], of_range[cut:]):
            if part:
                kept_rows(part, hand_over)
    rows = [record for record, number in zip(RECORDS, times, strict=True) for _ in range(number)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    columns = UnchangedColumns(hand_over, {"label": "name"})
    added = [
        row
        for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)
        for each in columns.added_to(batch(rows[start:end]))
        for row in each.to_pylist()
    ]
    assert [tuple(row.values()) for row in added] == [(*row, f"{row}") for row in rows]
    hand_over.remove()


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=20, max_size=20), st.data())
def test_rows_of_one_partition_need_only_their_offsets(tmp_path_factory, times, data):
    """The partition comes from the rows that were kept. The task reads offsets 10 to 19 before 0 to 9."""
    hand_over = HandOver("ab", 7, tmp_path_factory.mktemp("pass"))
    records = [record for record in RECORDS if record[:2] == ("a", 0)]
    for split in (records[:10], records[10:]):
        cut = data.draw(st.integers(1, 9))
        kept_rows(split[:cut], hand_over)
        kept_rows(split[cut:], hand_over)
    rows = [record for record, number in zip(records, times, strict=True) for _ in range(number)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    columns = UnchangedColumns(
        hand_over, {name: name for name in ("kafka_topic", "kafka_partition", "name")}, ("a", 0)
    )
    added = [
        (row["kafka_topic"], row["kafka_partition"], row["kafka_offset"], row["name"])
        for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)
        for each in columns.added_to(batch(rows[start:end]).select(["kafka_offset"]))
        for row in each.to_pylist()
    ]
    assert added == [(*row, f"{row}") for row in rows]
    hand_over.remove()


def test_an_offset_that_was_not_kept_is_an_error(tmp_path):
    hand_over = HandOver("ab", 7, tmp_path)
    kept_rows([("a", 0, 10), ("a", 0, 12)], hand_over)
    columns = UnchangedColumns(hand_over, {"kafka_topic": "kafka_topic"}, ("a", 0))
    with pytest.raises(
        StagedRowsDiffer, match=r"a\[0\] offset 11: Spark returned a row of this record out of"
    ):
        list(columns.added_to(batch([("a", 0, 10), ("a", 0, 11)]).select(["kafka_offset"])))
    hand_over.remove()


@pytest.mark.parametrize(
    "rows",
    [
        [("a", 0, 11), ("a", 0, 10)],
        [("a", 0, 13)],
        [("a", 0, 14), ("a", 0, 15), ("a", 0, 16)],
        [("a", 1, 10)],
        [("a", 0, 12), ("a", 0, 12), ("a", 0, 11)],
    ],
)
def test_a_row_of_a_record_that_was_not_kept_is_an_error(tmp_path, rows):
    hand_over = HandOver("ab", 7, tmp_path)
    for offset in (10, 11, 12):
        kept_rows([("a", 0, offset)], hand_over)
    kept_rows([("a", 0, 14), ("a", 0, 16)], hand_over)
    columns = UnchangedColumns(hand_over, {"name": "name"})
    with pytest.raises(
        StagedRowsDiffer, match=r"offset 1\d: Spark returned a row of this record out of order"
    ):
        list(columns.added_to(batch(rows)))
    hand_over.remove()
    assert not list(tmp_path.iterdir())


def test_unchanged_columns_are_kept_under_their_names_in_the_rows(tmp_path):
    one_pass = OnePass("ab", {"label": "name", "seen": "kafka_timestamp"}, PLACE)
    rows = batch(RECORDS[:3]).append_column("name", pa.array(["a", "b", "c"]))
    rows = rows.append_column("kafka_timestamp", pa.array([1, 2, 3]))
    hand_over = HandOver("ab", 7, tmp_path)
    hand_over.keep_rows(one_pass.kept(rows))
    (added,) = UnchangedColumns(hand_over, one_pass.unchanged).added_to(batch(RECORDS[1:3]))
    assert added.select(["label", "seen"]).to_pydict() == {"label": ["b", "c"], "seen": [2, 3]}
    assert set(added.schema.names) == {*PLACE, "label", "seen"}
