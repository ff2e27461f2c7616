"""What a user gives to a pipeline's DAG beside the pipeline: merged with what the DAG needs, or refused. Pure."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from airflow.sdk import CronDataIntervalTimetable

from exactbatch.airflow.parameters import parameters
from exactbatch.errors import ConfigurationError

# Airflow's words for schedules that are no cron text.
_NO_CRON: Final = ("@once", "@continuous")
_PRESETS: Final = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")
# Arguments of a DAG that pipeline_dag decides, and why.
_DECIDED: Final = {
    "dag_id": "it is the pipeline's name, by which the ledger knows the runs",
    "catchup": "a run takes all that is new, so there is nothing to catch up with; to process past intervals "
    "again, start a backfill",
    "max_active_runs": "one run moves the pipeline forward at a time, and a newer plan supersedes an older one; "
    "backfills are counted apart, and have a limit of their own",
    "timetable": "give it as schedule",
}
# Of default_args, what would reach all tasks.
_DECIDED_OF_TASKS: Final = {
    "trigger_rule": "the tasks of a batch depend on each other as they do",
    "pool": "give pipeline_dag pool and replay_pool",
    "task_id": "the tasks have their names",
}


def checked_schedule(pipeline: str, schedule: Any) -> Any:
    """A schedule as Airflow's DAG takes it; a cron text has data intervals, in UTC.

    Raises ConfigurationError for a text that is neither cron nor one of Airflow's words.
    """
    if not isinstance(schedule, str) or schedule in _NO_CRON:
        return schedule
    if schedule not in _PRESETS:
        from croniter import CroniterError, croniter  # Airflow's own parser

        try:
            croniter(schedule)
        except CroniterError as error:
            raise ConfigurationError(
                f"pipeline {pipeline!r}: the schedule {schedule!r} is no cron text: {str(error).rstrip('.')}. "
                f"Write five fields, as '*/5 * * * *', one of {', '.join((*_PRESETS, *_NO_CRON))}, or None for a "
                f"DAG that is only triggered."
            ) from None
    return CronDataIntervalTimetable(schedule, timezone="UTC")


def dag_options(
    pipeline: str, given: Mapping[str, Any], *, retries: int, retry_delay: timedelta, documentation: str
) -> dict[str, Any]:
    """The arguments of a pipeline's DAG: those that are given, merged with its own.

    Of default_args the given ones count; tags and params are added to the DAG's own, and doc_md to its text.

    Raises ConfigurationError for what cannot be given.
    """
    for name, why in _DECIDED.items():
        if name in given:
            raise ConfigurationError(f"pipeline {pipeline!r}: its DAG takes no {name}: {why}. Remove it.")
    default_args, params = dict(given.get("default_args") or {}), dict(given.get("params") or {})
    for name, why in _DECIDED_OF_TASKS.items():
        if name in default_args:
            raise ConfigurationError(
                f"pipeline {pipeline!r}: the default_args of its DAG take no {name}: {why}. Remove it."
            )
    # As Airflow does, which would let them replace the DAG's own.
    params = {**dict(default_args.pop("params", None) or {}), **params}
    own = parameters()
    if taken := sorted(own.keys() & params.keys()):
        raise ConfigurationError(
            f"pipeline {pipeline!r}: its DAG has parameters of the names {', '.join(taken)} already. Rename yours."
        )
    doc_md = given.get("doc_md")
    return {
        **given,
        "catchup": False,
        # One advance at a time: a newer plan supersedes an older one that has not committed. Backfills are
        # counted apart.
        "max_active_runs": 1,
        "default_args": {"retries": retries, "retry_delay": retry_delay, **default_args},
        "params": {**own, **params},
        "tags": sorted({"exactbatch", *(given.get("tags") or ())}),
        "doc_md": f"{doc_md}\n\n{documentation}" if doc_md else documentation,
    }
