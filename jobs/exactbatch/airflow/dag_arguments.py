"""The DAG arguments that a user may give: merged with those of the pipeline's DAG, or refused. Pure."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from airflow.sdk import DAG
from airflow.sdk.definitions.param import ParamsDict
from croniter import CroniterError, croniter  # Airflow's own parser

from exactbatch.airflow.versions import CronDataIntervalTimetable
from exactbatch.errors import ConfigurationError

# Airflow's names for schedules without a cron expression.
_WITHOUT_CRON: Final = ("@once", "@continuous")
_PRESETS: Final = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")
# Arguments of a DAG that pipeline_dag decides, and why.
_DECIDED: Final = {
    "dag_id": "it is the pipeline's name, which identifies the runs in the ledger",
    "catchup": "a run processes everything that is new, so there is nothing to catch up with. To process past "
    "intervals again, start a backfill",
    "max_active_runs": "only one run at a time moves the pipeline forward, and a newer plan supersedes an older one. "
    "A backfill has a separate limit",
    "timetable": "pass it as schedule",
}
# Arguments of tasks that pipeline_dag decides, and why; default_args would reach all tasks.
_DECIDED_FOR_TASKS: Final = {
    "trigger_rule": "the DAG sets how its tasks depend on each other",
    "pool": "pass pool and replay_pool to pipeline_dag",
    "task_id": "the DAG names its tasks",
}


def new_dag(dag_id: str, *, schedule: Any, start_date: datetime, options: Mapping[str, Any]) -> DAG:
    """Create a DAG with the options of dag_options(). Raises ConfigurationError for arguments that Airflow refuses."""
    try:
        return DAG(
            dag_id=dag_id, schedule=checked_schedule(dag_id, schedule), start_date=start_date, **options
        )
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"pipeline {dag_id!r}: Airflow refuses its DAG: {error}") from error


def keep_params_once(dag: DAG) -> None:
    """Remove the copies of the DAG's parameters that each task has: Airflow merges those of the DAG when a task runs.

    Airflow would validate and store each of the copies whenever it has parsed the DAG file.
    """
    for task in dag.tasks:
        task.params = ParamsDict()


def checked_schedule(pipeline: str, schedule: Any) -> Any:
    """Return a schedule for Airflow's DAG. A cron expression becomes a timetable with data intervals, in UTC.

    Raises ConfigurationError for text that is neither a cron expression nor one of Airflow's names.
    """
    if not isinstance(schedule, str) or schedule in _WITHOUT_CRON:
        return schedule
    if schedule not in _PRESETS:
        try:
            croniter(schedule)
        except CroniterError as error:
            raise ConfigurationError(
                f"pipeline {pipeline!r}: the schedule {schedule!r} is not a cron expression: "
                f"{str(error).rstrip('.')}. Write five fields, such as '*/5 * * * *', one of "
                f"{', '.join((*_PRESETS, *_WITHOUT_CRON))}, or None for a DAG that is only triggered."
            ) from None
    return CronDataIntervalTimetable(schedule, timezone="UTC")


def dag_options(
    pipeline: str,
    given: Mapping[str, Any],
    *,
    retries: int,
    retry_delay: timedelta,
    documentation: str,
    own: Mapping[str, Any],
) -> dict[str, Any]:
    """Merge the given arguments of a pipeline's DAG with its own, whose parameters are `own`.

    Given default_args take precedence, tags and params are added, and doc_md comes before the DAG's own text.

    Raises ConfigurationError for arguments that pipeline_dag decides.
    """
    for name, why in _DECIDED.items():
        if name in given:
            raise ConfigurationError(f"pipeline {pipeline!r}: its DAG takes no {name}: {why}. Remove {name}.")
    default_args, params = dict(given.get("default_args") or {}), dict(given.get("params") or {})
    for name, why in _DECIDED_FOR_TASKS.items():
        if name in default_args:
            raise ConfigurationError(
                f"pipeline {pipeline!r}: the default_args of its DAG take no {name}: {why}. Remove {name}."
            )
    # As in Airflow, but Airflow would let them replace the DAG's own.
    params = {**dict(default_args.pop("params", None) or {}), **params}
    if taken := sorted(own.keys() & params.keys()):
        raise ConfigurationError(
            f"pipeline {pipeline!r}: its DAG already has parameters of the names {', '.join(taken)}. Rename yours."
        )
    doc_md = given.get("doc_md")
    return {
        **given,
        "catchup": False,
        # One advance at a time: a newer plan supersedes an older one that has not committed. Airflow counts the
        # runs of a backfill separately.
        "max_active_runs": 1,
        "default_args": {"retries": retries, "retry_delay": retry_delay, **default_args},
        "params": {**own, **params},
        "tags": sorted({"exactbatch", *(given.get("tags") or ())}),
        "doc_md": f"{doc_md}\n\n{documentation}" if doc_md else documentation,
    }


def callbacks(default_args: Mapping[str, Any], name: str) -> list[Callable[[Any], None]]:
    """Return the callback `name` of default_args, one or many, as a list."""
    given = default_args.get(name) or []
    return list(given) if isinstance(given, list | tuple) else [given]
