"""The target of an Aggregate after one batch: the aggregates of each group and window."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, localcontext
from typing import Any, Final

from exactbatch.columns import Column
from exactbatch.sinks import Aggregate, Count, Sum, Window
from exactbatch.sinks.aggregate.functions import AggregateFunction
from exactbatch.sinks.aggregate.partial_results import staged_values
from exactbatch.sinks.aggregate.window_finality import FINAL, REVISIONS
from exactbatch.testing.compared import equal_as, needs_postgres, ordered_as, sorted_by
from exactbatch.testing.loaded import Row
from exactbatch.testing.staged import Place

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS: Final = 2000  # more than a sum of numerics can have


@dataclass(frozen=True)
class AggregateTarget:
    """The rows of an Aggregate's target, from staged rows alone; these have `kafka_timestamp` as well."""

    sink: Aggregate
    columns: Sequence[Column]

    def refused(self, rows: Sequence[Row], places: Sequence[Place]) -> list[tuple[Place, str]]:
        """Return the records whose event has no time, or one out of range, with the reason."""
        window = self.sink.window
        if window is None:
            return []
        return [
            (place, f"{window.expected}{'null' if row[window.column] is None else row[window.column]}")
            for row, place in zip(rows, places, strict=True)
            if not isinstance(row[window.column], datetime)
        ]

    def rows(self, rows: Sequence[Row], places: Sequence[Place]) -> list[Row]:
        """Return the rows of the target, by group."""
        groups: dict[tuple[Hashable, ...], list[Row]] = defaultdict(list)
        for row in rows:
            groups[tuple(self._equal(group, row) for group in self.sink.group_by)].append(row)
        watermark = self._watermark(rows, places)
        found = [self._result(of_group, watermark) for of_group in groups.values()]
        return sorted_by(self.sink.key_columns, found)

    @property
    def _values(self) -> dict[str, Column]:
        return dict(staged_values(self.columns))

    def _equal(self, group: str | Window, row: Row) -> Hashable:
        if isinstance(group, Window):
            return _start(group, row)
        return equal_as(self._values[group], row[group])

    def _result(self, rows: Sequence[Row], watermark: datetime | None) -> Row:
        first = rows[0]
        result: Row = {}
        for group in self.sink.group_by:
            if isinstance(group, Window):
                result[group.start.name] = _start(group, first)
            else:
                result[group] = self._representative(group, rows)
        for name, function in self.sink.aggregates.items():
            result[name] = self._aggregate(function, rows)
        if (finality := self.sink.finality) is not None:
            start = _start(finality.window, first)
            closed = start + finality.window.length + finality.wait
            result |= {FINAL.name: watermark is not None and closed <= watermark, REVISIONS.name: 0}
        return result

    def _representative(self, group: str, rows: Sequence[Row]) -> object:
        """Return the value that names a group: of values that look different, the one whose text is the least."""
        value = rows[0][group]
        if isinstance(value, float) and value == 0:
            return min((row[group] for row in rows), key=str)  # -0 stands for 0
        return value

    def _aggregate(self, function: AggregateFunction, rows: Sequence[Row]) -> object:
        if isinstance(function, Count):
            if function.column is None:
                return len(rows)
            return sum(row[function.column] is not None for row in rows)
        column = self._values[function.column]
        present: list[Any] = [row[column.name] for row in rows if row[column.name] is not None]
        if not present:
            return None
        if isinstance(function, Sum):
            if column.staged_type == "text":
                raise needs_postgres(f"{function}: Postgres alone reads numbers of type {column.type}")
            return _sum(present, function.type_of(self._values))
        extreme = min if function.function == "min" else max
        value = extreme(present, key=lambda each: ordered_as(column, each))
        return value + 0.0 if isinstance(value, float) else value  # of 0 and -0, it is 0

    def _watermark(self, rows: Sequence[Row], places: Sequence[Place]) -> datetime | None:
        """Return the least of the latest event times of all partitions that have one."""
        if (window := self.sink.window) is None:
            return None
        latest: dict[tuple[str, int], datetime] = {}
        for row, (topic, partition, _) in zip(rows, places, strict=True):
            time = _time(window, row)
            latest[topic, partition] = max(time, latest.get((topic, partition), time))
        return min(latest.values(), default=None)


def _time(window: Window, row: Row) -> datetime:
    time = row[window.column]
    assert isinstance(time, datetime)  # others are rejects
    return time


def _start(window: Window, row: Row) -> datetime:
    return _EPOCH + (_time(window, row) - _EPOCH) // window.length * window.length


def _sum(values: Sequence[Any], type_: str) -> object:
    if type_ == "numeric":
        with localcontext(prec=_DIGITS):
            return sum(map(Decimal, values), Decimal(0))
    return sum(values)
