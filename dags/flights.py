"""Departures from New York's airports: Kafka topic `flights` → Postgres table `public.flight`."""

from datetime import timedelta

from exactbatch.airflow import pipeline_dag
from pipelines.flights import flights

dag = pipeline_dag(flights, schedule="*/5 * * * *", retry_delay=timedelta(seconds=10))
