"""Exactly-once batches from Kafka to Postgres, run by Airflow and Spark."""

from exactbatch.formats import (
    Avro,
    Csv,
    Custom,
    Debezium,
    Flattened,
    Json,
    JsonSchema,
    Protobuf,
    Raw,
    Text,
    WithKeyAndHeaders,
)
from exactbatch.model import Limits
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.sinks import Aggregate, Append, Count, Max, Min, Route, Sum, Upsert, Window
from exactbatch.tables import Tables, TableTopic
from exactbatch.to_topic import ToTopic
from exactbatch.topic_pattern import TopicPattern
from exactbatch.tuning import Tuning

__all__ = [
    "Aggregate",
    "Append",
    "Avro",
    "Count",
    "Csv",
    "Custom",
    "Debezium",
    "Flattened",
    "Json",
    "JsonSchema",
    "Limits",
    "Max",
    "Min",
    "OffsetRange",
    "Pipeline",
    "Protobuf",
    "Raw",
    "Route",
    "Sum",
    "TableTopic",
    "Tables",
    "Text",
    "ToTopic",
    "TopicPattern",
    "Tuning",
    "Upsert",
    "Window",
    "WithKeyAndHeaders",
]
