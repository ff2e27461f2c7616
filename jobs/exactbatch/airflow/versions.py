"""The differences between the versions of Airflow that exactbatch runs in, 3.0 to 3.3; airflow_versions.py has the
page's.

A name is imported from where the newest version has it. Airflow 3.0 has no `external_views` of plugins: the page has no
menu entry and no tabs there, only its URL.
"""

try:
    import airflow.sdk  # noqa: F401
except ModuleNotFoundError:
    from importlib.metadata import version

    raise ImportError(
        f"found Airflow {version('apache-airflow')}, expected 3.0 or newer. To run batches in Airflow 2, call "
        f"`exactbatch run` in a BashOperator: `exactbatch explain deploy` shows how."
    ) from None

try:
    from airflow.sdk.configuration import conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
    )
    from airflow.sdk.observability.stats import Stats
except ModuleNotFoundError:  # 3.0 and 3.1
    from airflow.configuration import conf
    from airflow.exceptions import (  # type: ignore[attr-defined,no-redef]
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
    )
    from airflow.stats import Stats

try:
    from airflow.sdk import CronDataIntervalTimetable
except ImportError:  # 3.0 and 3.1
    from airflow.timetables.interval import CronDataIntervalTimetable  # type: ignore[assignment]

try:
    from airflow.sdk import BaseHook
except ImportError:  # 3.0
    from airflow.hooks.base import BaseHook  # type: ignore[attr-defined,no-redef]

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSkipException",
    "BaseHook",
    "CronDataIntervalTimetable",
    "Stats",
    "conf",
]
