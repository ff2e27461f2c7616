"""The pipelines of the soak: each sink and each way to commit, over one log; and one that loses records."""

from typing import Any, Final

from exactbatch import (
    Aggregate,
    Append,
    Count,
    Json,
    Limits,
    Max,
    Min,
    Pipeline,
    Route,
    Sum,
    ToTopic,
    Tuning,
    Upsert,
    Window,
)

TOPIC: Final = "soak"
# Retention removes records of this one, some of them before they were processed.
SHORT_TOPIC: Final = "soak.short"
# Results of one of the pipelines.
RESULTS_TOPIC: Final = "soak.results"
FORWARDING: Final = "upsert"
PARTITIONS: Final = 3

_COMMON: Final[dict[str, Any]] = {
    "value": Json("id int, carrier text, at timestamptz, delay int, version int"),
    "max_rejects": 1_000_000,
    "tuning": Tuning(read_timeout="10 seconds", lock_timeout="5 seconds"),
    "limits": Limits(max_offsets=20_000),
}
_MEASURES: Final[dict[str, Any]] = {
    "events": Count(),
    "delay": Sum("delay"),
    "best": Min("delay"),
    "worst": Max("delay"),
}
# Two of three events, and every second of these twice.
_SQL: Final = """
select id, carrier, at, delay, version, copy, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp
from records lateral view explode(case when id % 2 = 0 then array(1, 2) else array(1) end) copies as copy
where id % 3 <> 0
"""


def _pipeline(name: str, sink: Any, topic: str = TOPIC, **changes: Any) -> Pipeline:
    return Pipeline(name=name, topics=(topic,), sink=sink, **{**_COMMON, **changes})


PIPELINES: Final = {
    each.name: each
    for each in (
        _pipeline("append", Append("public.append")),
        _pipeline("partition", Append("public.by_partition"), commit="partition"),
        _pipeline(
            FORWARDING,
            Upsert("public.upsert", key=("id",)),
            message_key=Json("id int"),
            forward=ToTopic(RESULTS_TOPIC),
        ),
        _pipeline(
            "aggregate",
            Aggregate(
                "public.aggregate", group_by=("carrier", Window("at", "1 hour", "hour")), aggregates=_MEASURES
            ),
        ),
        _pipeline("transform", Append("public.transformed"), transform=_SQL),
        _pipeline(
            "route",
            Route(
                by="carrier",
                to={name: Append(f"public.route_{name.lower()}") for name in ("AA", "UA")},
                rest=Append("public.route_rest"),
            ),
        ),
        _pipeline("lossy", Append("public.lossy"), SHORT_TOPIC, on_loss="skip"),
    )
}
