"""The sinks, which store the rows of a batch. base.py is the protocol that all of them satisfy."""

from collections.abc import Mapping
from typing import Final

from exactbatch.sinks.aggregate.functions import Count, Max, Min, Sum
from exactbatch.sinks.aggregate.sink import Aggregate
from exactbatch.sinks.aggregate.window import Window
from exactbatch.sinks.append import Append
from exactbatch.sinks.base import Sink
from exactbatch.sinks.staged_rows import CheckedJson, StagedRows
from exactbatch.sinks.together import Together
from exactbatch.sinks.upsert.sink import Upsert
from exactbatch.sinks.upsert.without_history import UpsertWithoutHistory
from exactbatch.sinks.values.cast import RejectRule

# The sinks by the name under which the ledger registers them. It registers a Together as its sinks.
SINKS: Final[Mapping[str, type[Sink]]] = {
    sink.kind: sink for sink in (Append, Upsert, UpsertWithoutHistory, Aggregate)
}

__all__ = [
    "SINKS",
    "Aggregate",
    "Append",
    "CheckedJson",
    "Count",
    "Max",
    "Min",
    "RejectRule",
    "Sink",
    "StagedRows",
    "Sum",
    "Together",
    "Upsert",
    "UpsertWithoutHistory",
    "Window",
]
