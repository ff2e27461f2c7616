"""The parameters of a pipeline's DAG, and the replay that a run requests with them."""

import logging
from collections.abc import Collection
from typing import Any, Final

from airflow.sdk import Param

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
