"""Exactly-once batches from Kafka to Postgres, run by Airflow and Spark."""

from exactbatch.formats import Avro, Csv, Custom, Debezium, Json, Raw, Text, WithMessage
from exactbatch.model import Limits
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.sinks import Aggregate, Append, Count, Max, Min, Sum, Together, Upsert, Window
from exactbatch.tables import Tables, TableTopic
from exactbatch.topic_pattern import TopicPattern

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
    "TableTopic",
    "Tables",
    "Text",
    "Together",
    "TopicPattern",
    "Upsert",
    "Window",
    "WithMessage",
]
