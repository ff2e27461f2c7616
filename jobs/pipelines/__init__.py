"""The pipelines: one module for each, without any import of Airflow or Spark at module level."""
