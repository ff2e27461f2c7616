"""What a run's form asks for: the parameters of a DAG, and the replay that a run wants."""

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Param

from exactbatch.errors import ConfigurationError

if TYPE_CHECKING:
    from exactbatch.planning.request import ReplayRequest

log = logging.getLogger(__name__)

_OF_AIRFLOW: Final = "airflow/"  # keys of a run's configuration that Airflow has for itself
_SECTION: Final = "Process again (leave empty for a normal run and for a backfill)"


def parameters() -> dict[str, Param]:
    """The typed form of Airflow's trigger dialog. Every default is valid, and together they ask for nothing."""
    return {
        "ranges": Param(
            [],
            type="array",
            title="Offset ranges",
            description_md="Offsets to process again, until_offset not included, for example "
            '`[{"topic": "flights", "partition": 0, "from_offset": 100, "until_offset": 200}]`',
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
            section=_SECTION,
        ),
        "start": Param(
            None,
            type=["null", "string"],
            format="date-time",
            title="Time window: start",
            description_md="Process again what was sent from this time on, by message timestamp. The window is "
            "an offset range: from the first record at or after its start to the first at or after its end.",
            section=_SECTION,
        ),
        "end": Param(
            None,
            type=["null", "string"],
            format="date-time",
            title="Time window: end",
            description_md="Where the window ends; not included.",
            section=_SECTION,
        ),
        "batch_ids": Param(
            [],
            type="array",
            items={"type": "integer", "minimum": 1},
            title="Batch ids",
            description_md="Committed batches whose exact ranges are to be processed again, for example "
            "`[17, 18]`. `exactbatch status` lists them.",
            section=_SECTION,
        ),
        "available_only": Param(
            False,
            type="boolean",
            title="Only what the log still holds",
            description_md="Where retention has removed a part of what is asked for, or `exactbatch compact` "
            "has dropped changes of it, process the rest and keep the results of that part. Without it such a "
            "run fails and changes nothing.",
            section=_SECTION,
        ),
    }


def replay_of(dag_run: Any, params: Any, others: Collection[str] = ()) -> "ReplayRequest | None":
    """The replay that a run wants: a backfill its data interval, any other what its parameters say.

    Airflow takes keys that no parameter has, and does not check times: both are checked here. `others` are the
    names of parameters that the DAG's author has added.

    Raises ConfigurationError.
    """
    from exactbatch.planning.request import request_of

    given = {**dict(params), **(dag_run.conf or {})}
    given = {
        name: value
        for name, value in given.items()
        if name not in others and not name.startswith(_OF_AIRFLOW)
    }
    if dag_run.run_type != "backfill":
        request = request_of(given)
        if dag_run.run_type == "manual" and request is None:
            _check_no_interval(dag_run)
        return request
    if any(given.get(name) for name in ("ranges", "start", "end", "batch_ids")):
        raise ConfigurationError(
            "expected a backfill without ranges, start, end or batch_ids, for each of its runs processes its "
            "own data interval; found some. Trigger a single run to process them again."
        )
    start, end = dag_run.data_interval_start, dag_run.data_interval_end
    if start is None or end is None or start >= end:
        raise ConfigurationError(
            f"expected a data interval, as a backfill's runs have under a schedule that is a cron text, found "
            f"{start} to {end}. Give pipeline_dag a cron text or a timetable with data intervals."
        )
    return request_of({**given, "start": start.isoformat(), "end": end.isoformat()})


def _check_no_interval(dag_run: Any) -> None:
    """Raise ConfigurationError for a data interval that was given to a manual run, which does not use it.

    Airflow derives one from the logical date where none is given, and that ends at the logical date or before.
    """
    start, end, at = dag_run.data_interval_start, dag_run.data_interval_end, dag_run.logical_date
    if start is None or end is None or start >= end:
        return
    if at is not None and end > at:
        raise ConfigurationError(
            f"the run was triggered with the data interval {start} to {end}, and a run that is triggered "
            f"processes what is new. To process the interval again, trigger with "
            f'{{"start": "{start.isoformat()}", "end": "{end.isoformat()}"}}, or start a backfill.'
        )
    log.info("the run processes what is new, whatever its data interval, %s to %s", start, end)
