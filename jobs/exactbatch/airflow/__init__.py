"""Pipelines as Airflow DAGs."""

from exactbatch.airflow.dag import pipeline_asset, pipeline_dag

__all__ = ["pipeline_asset", "pipeline_dag"]
