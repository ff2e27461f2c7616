"""The sinks, which store the rows of a batch: one file for each, and the protocol of all in base.py."""

from collections.abc import Mapping
from typing import Final

from exactbatch.sinks.aggregate import Aggregate
from exactbatch.sinks.aggregate_functions import Count, Max, Min, Sum
from exactbatch.sinks.append import Append
from exactbatch.sinks.base import Sink
from exactbatch.sinks.cast import RejectRule
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.upsert import Upsert
from exactbatch.sinks.window import Window

# The sinks by the name under which the ledger registers them.
SINKS: Final[Mapping[str, type[Sink]]] = {sink.kind: sink for sink in (Append, Upsert, Aggregate)}

__all__ = [
    "SINKS",
    "Aggregate",
    "Append",
    "Count",
    "Max",
    "Min",
    "RejectRule",
    "Sink",
    "StagedRows",
    "Sum",
    "Upsert",
    "Window",
]
