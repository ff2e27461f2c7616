"""An auth manager of Airflow that permits or denies each action on each DAG, and notes what is asked of it."""

from dataclasses import dataclass
from typing import Any, ClassVar

from airflow.api_fastapi.auth.managers.base_auth_manager import BaseAuthManager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails

from exactbatch.airflow.page.airflow_versions import browsers_send_session

Grant = tuple[str, str, DagAccessEntity | None]  # DAG, method, and what of the DAG


def session_of(token: str) -> dict[str, Any]:
    """Return what a request has of a session with this token: a cookie, or a header in Airflow 3.0."""
    if browsers_send_session():
        return {"cookies": {"_token": token}}
    return {"headers": {"Authorization": f"Bearer {token}"}}


@dataclass(frozen=True)
class NamedUser(BaseUser):
    """A user who is only a name, which is also the token of the session."""

    name: str

    def get_id(self) -> str:
        """Return the name."""
        return self.name

    def get_name(self) -> str:
        """Return the name."""
        return self.name


class PerDagAuthManager(BaseAuthManager[NamedUser]):
    """What a user may do is in `grants`; names of attributes that somebody reads are added to `read`."""

    grants: ClassVar[dict[str, set[Grant]]] = {}
    read: ClassVar[set[str]] = set()

    def __getattribute__(self, name: str) -> Any:
        PerDagAuthManager.read.add(name)
        return super().__getattribute__(name)

    async def get_user_from_token(self, token: str) -> BaseUser:
        """Return the user of that name."""
        return NamedUser(token)

    def is_authorized_dag(
        self, *, method: Any, user: NamedUser, access_entity: Any = None, details: DagDetails | None = None
    ) -> bool:
        """Return whether exactly this is granted."""
        return details is not None and (details.id, method, access_entity) in self.grants[user.name]

    def get_authorized_dag_ids(self, *, user: NamedUser, method: Any = "GET", **_: Any) -> set[str]:
        """Return the DAGs that the user may read, or change."""
        return {
            dag_id
            for dag_id, granted, entity in self.grants[user.name]
            if (granted, entity) == (method, None)
        }

    def deserialize_user(self, token: dict[str, Any]) -> NamedUser:
        """Return the user of a token."""
        return NamedUser(token["sub"])

    def serialize_user(self, user: NamedUser) -> dict[str, Any]:
        """Return the token of a user."""
        return {"sub": user.name}

    def get_url_login(self, **_: Any) -> str:
        """Return an address."""
        return "/login"

    def filter_authorized_menu_items(self, menu_items: list[Any], *, user: NamedUser) -> list[Any]:
        """Return no item."""
        return []

    def _denied(self, **_: Any) -> bool:
        return False

    is_authorized_configuration = is_authorized_connection = is_authorized_asset = _denied
    is_authorized_asset_alias = is_authorized_pool = is_authorized_variable = _denied
    is_authorized_view = is_authorized_custom_view = _denied
    is_authorized_backfill = _denied  # Airflow 3.0 asks for it
