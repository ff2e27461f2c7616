"""The SQL statements of the Grafana dashboard in docs/grafana, with the macros that Grafana expands."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

DASHBOARD: Final[Mapping[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "docs" / "grafana" / "exactbatch.json").read_text(encoding="utf-8")
)
VIEWS: Final = ("pipeline_state", "batch_history", "open_batches", "partition_state")
_INTERVAL: Final = 60  # seconds; what Grafana puts in the place of $__interval


@dataclass(frozen=True)
class Query:
    """A statement of a panel, before Grafana expands its macros and variables."""

    panel: Mapping[str, Any]
    sql: str

    @property
    def title(self) -> str:
        """The title of the panel."""
        return str(self.panel["title"])

    def expanded(self, pipelines: Sequence[str], first: datetime, last: datetime) -> str:
        """Return what Grafana sends for these pipelines and this range of time."""
        variables = {"pipeline": ",".join(f"'{name}'" for name in pipelines), "__interval": f"{_INTERVAL}s"}
        text = re.sub(r"\$(\w+)(?!\w*\()", lambda found: variables[found[1]], self.sql)
        macros: dict[str, Callable[..., str]] = {
            "__timeFilter": lambda column: f"{column} BETWEEN '{_utc(first)}' AND '{_utc(last)}'",
            "__timeGroupAlias": lambda column, interval: (
                f"floor(extract(epoch from {column})/{interval.removesuffix('s')})*{interval.removesuffix('s')} "
                f'AS "time"'
            ),
        }
        return re.sub(r"\$(\w+)\(([^)]*)\)", lambda found: macros[found[1]](*re.split(", *", found[2])), text)


def queries() -> Iterator[Query]:
    """Yield the statements of all panels, and that of each variable."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield Query(panel, target["rawSql"])
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield Query({"title": f"${variable['name']}", "type": "variable"}, variable["query"])


def _utc(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
