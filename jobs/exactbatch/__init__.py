"""Exactly-once batches from Kafka to Postgres, run by Airflow and Spark."""

from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.planner import Limits
from exactbatch.sinks import Append, Upsert
from exactbatch.values import Json, Raw, Text

__all__ = ["Append", "Json", "Limits", "OffsetRange", "Pipeline", "Raw", "Text", "Upsert"]
