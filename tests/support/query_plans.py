"""What the statements of a block do in Postgres: their plans, as executed, through auto_explain."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

_SETTINGS: Final = (
    "load 'auto_explain'; set auto_explain.log_min_duration = 0; set auto_explain.log_analyze = on; "
    "set auto_explain.log_buffers = on; set auto_explain.log_timing = off; set auto_explain.log_format = json; "
    "set auto_explain.log_level = notice; set auto_explain.log_nested_statements = on; "
    "set client_min_messages = notice"
)
HISTORY: Final = ("batch", "batch_range", "coverage", "rejected_record")


@dataclass(frozen=True)
class ExecutedPlan:
    """A statement with its plan, as Postgres executed it."""

    statement: str
    plan: dict[str, Any]

    def nodes(self) -> Iterator[dict[str, Any]]:
        """Yield all nodes of the plan."""
        waiting = [self.plan]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.get("Plans", ())

    @property
    def scanned(self) -> list[str]:
        """The tables of history that the plan reads from end to end."""
        return [
            node["Relation Name"]
            for node in self.nodes()
            if node["Node Type"] == "Seq Scan" and node["Relation Name"] in HISTORY and node["Actual Loops"]
        ]

    @property
    def rows_read(self) -> int:
        """The number of rows of history that scans returned or removed."""
        return sum(
            round((node["Actual Rows"] + sum(node.get(key, 0) for key in _REMOVED)) * node["Actual Loops"])
            for node in self.nodes()
            if node.get("Relation Name") in HISTORY or node["Node Type"].startswith("Bitmap Index")
        )

    @property
    def blocks(self) -> int:
        """The number of blocks of 8 kB that the statement looked at."""
        return int(self.plan.get("Shared Hit Blocks", 0) + self.plan.get("Shared Read Blocks", 0))


_REMOVED: Final = (
    "Rows Removed by Filter",
    "Rows Removed by Index Recheck",
    "Rows Removed by Join Filter",
)


# What a message to the server may begin with.
_PATH: Final = re.compile(r"^set local search_path to [^;]*; ")


class _Notices(list[str]):
    """Keeps all notices of a connection; psycopg2 would keep the last 50."""


@contextmanager
def executed_plans(connection: Any) -> Iterator[list[ExecutedPlan]]:
    """Yield a list that has, after the block, the plans of all statements that the connection executed in it."""
    connection.rollback()
    with connection, connection.cursor() as cursor:
        cursor.execute(_SETTINGS)
    connection.notices = _Notices()
    plans: list[ExecutedPlan] = []
    yield plans
    connection.rollback()
    for notice in connection.notices:
        if "plan:" in notice:
            explained = json.loads(notice.partition("plan:")[2])
            plans.append(ExecutedPlan(_PATH.sub("", explained["Query Text"]), explained["Plan"]))
    with connection, connection.cursor() as cursor:
        cursor.execute("set auto_explain.log_min_duration = -1")
