"""What tests need that differs by the version of Airflow; exactbatch.airflow.versions has what the program needs."""

from typing import Any

try:
    from airflow.serialization.serialized_objects import DagSerialization
except ImportError:  # 3.0 and 3.1
    from airflow.serialization.serialized_objects import (  # type: ignore[assignment,attr-defined]
        SerializedDAG as DagSerialization,
    )

try:
    from airflow.sdk.exceptions import AirflowTaskTimeout, ParamValidationError
except ImportError:  # 3.0 and 3.1
    from airflow.exceptions import (  # type: ignore[no-redef]
        AirflowTaskTimeout,
        ParamValidationError,
    )

from exactbatch.airflow.versions import Stats

__all__ = ["AirflowTaskTimeout", "DagSerialization", "ParamValidationError", "start_metrics"]


def start_metrics() -> None:
    """Send metrics from now on as the configuration says: what Airflow does when a task starts."""
    stats: Any
    stats_utils: Any
    try:
        from airflow.sdk.observability import stats
        from airflow.sdk.observability.metrics import stats_utils
    except ModuleNotFoundError:  # 3.0 and 3.1, which do it at the first metric
        of_stats: Any = Stats
        del type(of_stats).factory
        of_stats.instance = None
        type(of_stats).__init__(of_stats)
        return
    if hasattr(stats, "initialize"):
        stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
    else:  # 3.2
        stats.Stats.initialize(factory=stats_utils.get_stats_factory(Stats))
