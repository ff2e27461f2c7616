"""The inputs of a pipeline's DAG: the arguments that a user may give, which are merged with its own or refused, its
parameters, and the replay that a run requests with them.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from airflow.sdk import DAG, Param
from airflow.sdk.definitions.param import ParamsDict
from croniter import CroniterError, croniter  # Airflow's own parser

from exactbatch.airflow.versions import CronDataIntervalTimetable
from exactbatch.errors import ConfigurationError
from exactbatch.planning.request import MOST_ENTRIES, ReplayRequest, parse_request, shown

logger = logging.getLogger(__name__)

_AIRFLOW_PREFIX: Final = "airflow/"  # of keys in a run's configuration that Airflow itself adds
_ENABLES_OPENLINEAGE: Final = (
    "_selective_enable_ol"  # enable_lineage() of Airflow's provider adds it to a DAG
)
TABLES: Final = "tables"
# The types of runs that somebody starts; those of TriggerDagRunOperator have one of their own from Airflow 3.3 on.
TRIGGERED: Final = ("manual", "operator_triggered")
_SECTION: Final = "Process again (leave empty for a normal run and for a backfill)"
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


def parameters(*, is_tables: bool = False) -> dict[str, Param]:
    """Return the typed form of Airflow's trigger dialog, what is used most first. The defaults request no replay.

    With many tables, the first parameter names those that a run concerns.
    """
    tables = Param(
        [],
        type="array",
        items={"type": "string"},
        title="Tables",
        description_md="The tables that this run concerns, for example `[customers, orders]`; all of them if "
        "empty. Offset ranges and batch IDs name their table themselves.",
    )
    return {
        **({TABLES: tables} if is_tables else {}),
        "start": Param(
            None,
            type=["null", "string"],
            format="date-time",
            title="Time window: start",
            description_md="Process again the records from this time on, by message timestamp. The window is "
            "an offset range: from the first record at or after its start to the first at or after its end.",
            section=_SECTION,
        ),
        "end": Param(
            None,
            type=["null", "string"],
            format="date-time",
            title="Time window: end",
            description_md="End of the window, not included. A window needs both times.",
            section=_SECTION,
        ),
        "batch_ids": Param(
            [],
            type="array",
            items={"type": "integer", "minimum": 1},
            maxItems=MOST_ENTRIES,
            title="Batch ids",
            description_md="Committed batches whose exact ranges to process again, for example `[17, 18]`. "
            "The page *Browse → Pipelines* and `exactbatch batches` list them.",
            section=_SECTION,
        ),
        "ranges": Param(
            [],
            type="array",
            title="Offset ranges",
            description_md="Offsets to process again, until_offset not included, for example "
            '`[{"topic": "flights", "partition": 0, "from_offset": 100, "until_offset": 200}]`. The page '
            "*Browse → Pipelines* fills this in for offsets that you select, and shows what would be replaced.",
            items={
                "type": "object",
                "properties": {
                    "topic": {"type": "string"},
                    "partition": {"type": "integer", "minimum": 0},
                    "from_offset": {"type": "integer", "minimum": 0},
                    "until_offset": {"type": "integer", "minimum": 1},
                },
                "required": ["topic", "partition", "from_offset", "until_offset"],
                "additionalProperties": False,
            },
            maxItems=MOST_ENTRIES,
            section=_SECTION,
        ),
        "available_only": Param(
            False,
            type="boolean",
            title="Only what the log still holds",
            description_md="If retention has removed a part of the offsets, or `exactbatch compact` has dropped "
            "changes of them, process the rest and keep the results of that part. Without this option, such a run "
            "fails and changes nothing.",
            section=_SECTION,
        ),
    }


def find_tables(dag_run: Any, params: Any) -> list[str]:
    """Return the tables that a run of many tables concerns; none stands for all. Raises ConfigurationError."""
    given = {**dict(params), **(dag_run.conf or {})}.get(TABLES) or []
    if not isinstance(given, list | tuple) or not all(isinstance(table, str) for table in given):
        raise ConfigurationError(
            f"expected {TABLES} as a list of names, such as ['customers'], found {shown(given)}"
        )
    return list(dict.fromkeys(given))


def find_replay(
    dag_run: Any, params: Any, others: Collection[str] = (), *, in_group: bool = False
) -> ReplayRequest | None:
    """Return the replay that a run requests: a backfill its data interval, any other run what its parameters name.

    Airflow accepts keys without a parameter and does not check times; this function checks both. `others` are the
    names of parameters that the DAG's author has added. All parameters of a DAG with a task group are its author's.

    Raises ConfigurationError.
    """
    given = {**dict(params), **(dag_run.conf or {})}
    if in_group:
        _check_no_request(given.keys() - {*others})
        if dag_run.run_type != "backfill":
            return None
        given = {}
    given = {
        name: value
        for name, value in given.items()
        if name not in others and name != _ENABLES_OPENLINEAGE and not name.startswith(_AIRFLOW_PREFIX)
    }
    if dag_run.run_type != "backfill":
        request = parse_request(given)
        if dag_run.run_type in TRIGGERED and request is None:
            _check_no_interval(dag_run)
        return request
    if any(given.get(name) for name in ("ranges", "start", "end", "batch_ids")):
        raise ConfigurationError(
            "the backfill has ranges, start, end or batch_ids, but each of its runs processes its data interval. To "
            "process ranges, a window or batches again, trigger a single run."
        )
    start, end = dag_run.data_interval_start, dag_run.data_interval_end
    if start is None or end is None or start >= end:
        raise ConfigurationError(
            f"expected a data interval, which runs of a backfill have if the schedule is a cron expression, found "
            f"{start} to {end}. Give pipeline_dag a cron expression or a timetable with data intervals."
        )
    return parse_request({**given, "start": start.isoformat(), "end": end.isoformat()})


def _check_no_request(names: Collection[str]) -> None:
    """Raise ConfigurationError if a run of a DAG with a task group was triggered with parameters of a replay."""
    if asked := sorted(parameters(is_tables=True).keys() & names):
        raise ConfigurationError(
            f"the run was triggered with {', '.join(asked)}, but only DAGs of pipeline_dag take replays as parameters. "
            f"To process ranges, a window or batches again, run `exactbatch replay`. To process the batch of a run "
            f"again, clear the plan_batch of the run with its downstream tasks."
        )


def _check_no_interval(dag_run: Any) -> None:
    """Raise ConfigurationError if a manual run, which uses no data interval, was triggered with one.

    Without one, Airflow derives an interval from the logical date, which ends at that date or before.
    """
    start, end, at = dag_run.data_interval_start, dag_run.data_interval_end, dag_run.logical_date
    if start is None or end is None or start >= end:
        return
    if at is not None and end > at:
        raise ConfigurationError(
            f"the run was triggered with the data interval {start} to {end}, but a triggered run processes what is "
            f"new. To process the interval again, trigger with "
            f'{{"start": "{start.isoformat()}", "end": "{end.isoformat()}"}}, or start a backfill.'
        )
    logger.info("the run ignores its data interval, %s to %s, and processes what is new", start, end)


def new_dag(dag_id: str, *, schedule: Any, start_date: datetime, options: Mapping[str, Any]) -> DAG:
    """Create a DAG with the options of merge_dag_options().

    Raises ConfigurationError for arguments that Airflow refuses.
    """
    try:
        return DAG(
            dag_id=dag_id, schedule=convert_schedule(dag_id, schedule), start_date=start_date, **options
        )
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"pipeline {dag_id!r}: Airflow refuses its DAG: {error}") from error


def keep_params_once(dag: DAG) -> None:
    """Remove the copies of the DAG's parameters that each task has: Airflow merges the parameters of the DAG when a
    task runs.

    Airflow would validate and store each of the copies whenever it has parsed the DAG file.
    """
    for task in dag.tasks:
        task.params = ParamsDict()


def convert_schedule(pipeline: str, schedule: Any) -> Any:
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


def merge_dag_options(
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
