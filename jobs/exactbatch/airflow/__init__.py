"""Pipelines as Airflow DAGs, or as task groups of your own DAGs."""

import exactbatch.airflow.versions  # noqa: F401 - first, because it refuses Airflow 2
from exactbatch.airflow.connections import Connections
from exactbatch.airflow.dag import PipelineTaskGroup, pipeline_dag, pipeline_task_group
from exactbatch.airflow.task_definitions import pipeline_asset

__all__ = ["Connections", "PipelineTaskGroup", "pipeline_asset", "pipeline_dag", "pipeline_task_group"]
