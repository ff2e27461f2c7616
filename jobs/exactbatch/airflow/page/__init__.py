"""The operator's page in Airflow: what pipelines do, and replays from it. plugin.py registers it."""
