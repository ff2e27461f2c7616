"""Where results land: one file for each sink."""

from exactbatch.sinks.aggregate import Aggregate
from exactbatch.sinks.append import Append
from exactbatch.sinks.cast import Misfit
from exactbatch.sinks.measures import Count, Max, Min, Sum
from exactbatch.sinks.upsert import Upsert
from exactbatch.sinks.window import Window

Sink = Aggregate | Append | Upsert

__all__ = ["Aggregate", "Append", "Count", "Max", "Min", "Misfit", "Sink", "Sum", "Upsert", "Window"]
