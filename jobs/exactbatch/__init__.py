"""Exactly-once batches from Kafka to Postgres, run by Airflow and Spark."""

from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.planner import Limits
from exactbatch.sinks import Append, Upsert
from exactbatch.values import Debezium, Json, Raw, Text

__all__ = ["Append", "Debezium", "Json", "Limits", "OffsetRange", "Pipeline", "Raw", "Text", "Upsert"]
