"""Pipelines as Airflow DAGs, or as task groups of your own DAGs."""

import exactbatch.airflow.versions  # noqa: F401 - first, because it refuses Airflow 2
from exactbatch.airflow.connections import Connections
from exactbatch.airflow.dag import pipeline_dag
from exactbatch.airflow.task_definitions import pipeline_asset
from exactbatch.airflow.task_group import PipelineTaskGroup, pipeline_task_group

__all__ = ["Connections", "PipelineTaskGroup", "pipeline_asset", "pipeline_dag", "pipeline_task_group"]
