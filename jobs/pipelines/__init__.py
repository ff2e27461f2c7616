"""The pipelines of a deployment, one module for each. A module imports neither Airflow nor Spark when it is loaded."""
