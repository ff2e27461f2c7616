"""Pipelines as Airflow DAGs."""

import exactbatch.airflow.versions  # noqa: F401 - first, because it refuses Airflow 2
from exactbatch.airflow.connections import Connections
from exactbatch.airflow.dag import pipeline_asset, pipeline_dag
from exactbatch.airflow.tables_dag import tables_asset, tables_dag

__all__ = ["Connections", "pipeline_asset", "pipeline_dag", "tables_asset", "tables_dag"]
