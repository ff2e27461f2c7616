"""The destinations of the rows of a pipeline: the sinks that a user writes, and the writers that store their rows.

The sinks are options alone; writers.py has the table of their writers.
"""

from exactbatch.sinks.aggregate.functions import Count, Max, Min, Sum
from exactbatch.sinks.aggregate.spec import Aggregate
from exactbatch.sinks.aggregate.window import Window
from exactbatch.sinks.append import Append
from exactbatch.sinks.route import Route
from exactbatch.sinks.sink import FormatFacts, Sink, SinkTraits
from exactbatch.sinks.upsert.spec import Upsert

__all__ = [
    "Aggregate",
    "Append",
    "Count",
    "FormatFacts",
    "Max",
    "Min",
    "Route",
    "Sink",
    "SinkTraits",
    "Sum",
    "Upsert",
    "Window",
]
