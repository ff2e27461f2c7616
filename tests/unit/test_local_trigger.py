"""`exactbatch local trigger` shows how far the runs are that it has started."""

from exactbatch.local.airflow_client import AirflowClient, Run
from exactbatch.local.commands_airflow import run_once


class Answers(AirflowClient):
    """An Airflow whose schedule starts a run as well, once the DAG is unpaused."""

    def __init__(self) -> None:
        self.started = ["old"]

    def wait_for_dag(self, dag_id, **options):
        self.started.append("scheduled")

    def trigger(self, dag_id, conf=None):
        self.started.append("manual")
        return "manual"

    def runs(self, dag_id):
        return [Run(run_id=run_id, state="success") for run_id in self.started]

    def run_state(self, dag_id, run_id):
        return "success"

    def task_states(self, dag_id, run_id):
        return {"plan_batch": ("skipped", 1), "process_batch": ("skipped", 1)}


def test_each_run_is_shown_once():
    shown: list[str] = []
    runs = run_once(Answers(), "orders", shown.append)
    assert [run.run_id for run in runs] == ["scheduled", "manual"]
    assert shown == [
        "manual: plan_batch skipped, process_batch skipped",
        "scheduled: plan_batch skipped, process_batch skipped",
    ]
