"""Register the Pipelines page with Airflow. Every process of Airflow loads plugins, so this module is light."""

from functools import cached_property
from typing import Any, Final

from airflow.plugins_manager import AirflowPlugin

_PREFIX: Final = "/exactbatch"
# Relative to the address of Airflow, which may be below a path.
_PAGE: Final = "exactbatch/"


class ExactbatchPage(AirflowPlugin):
    """The page in Airflow's menu, and a tab of each DAG, run and task; Airflow's server serves it itself."""

    name = "exactbatch"
    external_views: list[Any] = [  # noqa: RUF012 - declared by Airflow
        {
            "name": "Pipelines",
            "href": _PAGE,
            "destination": "nav",
            "category": "browse",
            "url_route": "exactbatch",
            "icon": f"{_PAGE}static/icon.svg",
            "icon_dark_mode": f"{_PAGE}static/icon-dark.svg",
        },
        {
            "name": "exactbatch",
            "href": f"{_PAGE}?dag={{DAG_ID}}",
            "destination": "dag",
            "url_route": "exactbatch-dag",
        },
        {
            "name": "exactbatch",
            "href": f"{_PAGE}?dag={{DAG_ID}}&run={{RUN_ID}}",
            "destination": "dag_run",
            "url_route": "exactbatch-run",
        },
        {
            "name": "exactbatch",
            "href": f"{_PAGE}?dag={{DAG_ID}}&run={{RUN_ID}}",
            "destination": "task_instance",
            "url_route": "exactbatch-task-instance",
        },
        {
            "name": "exactbatch",
            "href": f"{_PAGE}?dag={{DAG_ID}}",
            "destination": "task",
            "url_route": "exactbatch-task",
        },
    ]

    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]  # Airflow's own is a class attribute
        """The application; only the API server asks for it."""
        # Every process of Airflow loads plugins, and only this one serves them.
        from exactbatch.airflow.page.routes import create_app

        return [{"app": create_app(), "url_prefix": _PREFIX, "name": "exactbatch"}]
