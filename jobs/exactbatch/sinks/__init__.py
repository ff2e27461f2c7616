"""Where results land: one file for each sink."""

from exactbatch.sinks.append import Append
from exactbatch.sinks.upsert import Upsert

Sink = Append | Upsert

__all__ = ["Append", "Sink", "Upsert"]
