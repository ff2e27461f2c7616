"""Several targets of one pipeline, which one transaction writes: all have each row, or each row goes to one of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from exactbatch.errors import ConfigurationError
from exactbatch.sinks.append import Append
from exactbatch.sinks.route import Route
from exactbatch.sinks.sink import FormatFacts, Sink, SinkTraits, refuse_truncates
from exactbatch.sinks.table_name import TableName
from exactbatch.sinks.upsert.spec import Upsert

_NOT_COPYABLE: Final = "several targets, which one transaction writes"


def find_traits(sink: Sink | Sequence[Sink] | Route, facts: FormatFacts) -> SinkTraits:
    """Return what the sinks of a pipeline ask of it: one sink, Appends and at most one Upsert that each have every row,
    or the Appends and Upserts of a Route.

    Rows are staged once. A batch writes them into all targets or into none, a replay retracts them from all, and a
    record with a value that its target, or one of its targets, cannot hold is a reject for all. Next to an Upsert, an
    Append has a row for each change, deletes included, with the column `deleted`.

    No other pipeline may write to any of the targets.

    Raises ConfigurationError for sinks that cannot work together, or cannot take what the format gives.
    """
    if not isinstance(sink, Sequence | Route):
        return sink.find_traits(facts)
    route, sinks = (sink, sink.sinks) if isinstance(sink, Route) else (None, sink)
    if len(sinks) == 1:
        return sinks[0].find_traits(facts)
    _check_together(sinks, route)
    refuse_truncates(_list_sinks(sinks, route), facts)
    # The Upsert decides: it is the last.
    in_order = sorted(sinks, key=lambda each: isinstance(each, Upsert))
    whole = replace(facts, has_unavailable_values=False)  # an Append has no older change to take a value from
    *others, main = (each.find_traits(whole) for each in in_order)
    if route is None:
        targets = [
            *(
                replace(each, key_columns=main.key_columns, keeps_deletes=main.keeps_deletes)
                for each in others
            ),
            main,
        ]
    else:
        _check_versions(sinks, route)
        targets = [
            replace(each, keeps_deletes=main.keeps_deletes, route=route.find_route(each.sink))
            for each in (*others, main)
        ]
    return replace(
        main,
        target=" and ".join(each.target for each in in_order),
        # Each target of a Route has another key: the rules for its rows check it.
        key_columns=main.key_columns if route is None else (),
        needs_last_records_only=False,
        not_copyable=_NOT_COPYABLE,
        targets=tuple(targets),
    )


def _check_together(sinks: Sequence[Sink], route: Route | None) -> None:
    if not sinks:
        raise ConfigurationError("expected a sink or several of them, found none")
    if other := next((sink for sink in sinks if not isinstance(sink, Append | Upsert)), None):
        raise _error(
            sinks, route, f"{type(other).__name__} does not work next to other sinks. Use two pipelines"
        )
    tables = [TableName(sink.target) for sink in sinks]
    names = [
        name
        for sink, table in zip(sinks, tables, strict=True)
        for name in (table.name, *(table.sibling(suffix).name for suffix in sink.kind.companions))
    ]
    if len(set(names)) < len(names):
        raise _error(sinks, route, "two of the sinks write to one table. Give them different targets")
    if route is None and sum(isinstance(sink, Upsert) for sink in sinks) > 1:
        raise _error(
            sinks, route, "more than one of the sinks is an Upsert. Load the topic with two pipelines"
        )
    for sink in sinks:
        if not sink.kind.keeps_every_row:
            raise _error(
                sinks, route, f"{sink.target} has history=False, so that a replay cannot retract its rows"
            )
        if isinstance(sink, Append) and (sink.lineage != "record" or sink.layout != "plain"):
            raise _error(sinks, route, f"{sink.target} needs lineage='record' and layout='plain'")


def _check_versions(sinks: Sequence[Sink], route: Route) -> None:
    """Raise ConfigurationError if the Upserts differ in their versions: a staged row has one position."""
    upserts = [sink for sink in sinks if isinstance(sink, Upsert)]
    if different := [each for each in upserts if each.version_columns != upserts[0].version_columns]:
        raise _error(
            sinks,
            route,
            f"{upserts[0].target} and {different[0].target} differ in version. Give them the same one",
        )


def _error(sinks: Sequence[Sink], route: Route | None, fact: str) -> ConfigurationError:
    return ConfigurationError(f"{_list_sinks(sinks, route)}: {fact}.")


def _list_sinks(sinks: Sequence[Sink], route: Route | None) -> str:
    named = ", ".join(f"{type(sink).__name__}({sink.target!r})" for sink in sinks)
    return f"sink=[{named}]" if route is None else f"sink=Route(by={route.by!r}, to {named})"
