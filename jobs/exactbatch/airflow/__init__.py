"""Pipelines as Airflow DAGs."""

from exactbatch.airflow.connections import Connections
from exactbatch.airflow.dag import pipeline_asset, pipeline_dag
from exactbatch.airflow.tables_dag import tables_asset, tables_dag

__all__ = ["Connections", "pipeline_asset", "pipeline_dag", "tables_asset", "tables_dag"]
