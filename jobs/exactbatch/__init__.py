"""Exactly-once batches from Kafka to Postgres, run by Airflow and Spark."""

from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.planner import Limits
from exactbatch.sinks import Aggregate, Append, Count, Max, Min, Sum, Upsert, Window
from exactbatch.values import Avro, Csv, Custom, Debezium, Json, Raw, Text, WithMessage

__all__ = [
    "Aggregate",
    "Append",
    "Avro",
    "Count",
    "Csv",
    "Custom",
    "Debezium",
    "Json",
    "Limits",
    "Max",
    "Min",
    "OffsetRange",
    "Pipeline",
    "Raw",
    "Sum",
    "Text",
    "Upsert",
    "Window",
    "WithMessage",
]
