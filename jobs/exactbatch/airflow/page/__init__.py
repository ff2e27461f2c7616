"""The Pipelines page in Airflow: what pipelines do, and replays from it. plugin.py registers it."""
