"""Several sinks of one pipeline: the rows of a batch in several targets, in one transaction."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from exactbatch.errors import ConfigurationError
from exactbatch.sinks.append import Append
from exactbatch.sinks.sink import FormatFacts, Sink, SinkTraits, refuse_truncates
from exactbatch.sinks.table_name import TableName
from exactbatch.sinks.upsert.spec import Upsert

_NOT_COPYABLE: Final = "several targets, which one transaction writes"


def find_traits(sinks: Sequence[Sink], facts: FormatFacts) -> SinkTraits:
    """Return what the sinks of a pipeline ask of it: one sink, or Appends and at most one Upsert.

    Rows are staged once. A batch writes them into all targets or into none, a replay retracts them from all, and a
    record with a value that one of the targets cannot hold is a reject for all. Next to an Upsert, an Append has a row
    for each change, deletes included, with the column `deleted`.

    No other pipeline may write to any of the targets.

    Raises ConfigurationError for sinks that cannot work together, or cannot take what the format gives.
    """
    if len(sinks) == 1:
        return sinks[0].find_traits(facts)
    _check_together(sinks)
    refuse_truncates(_listed(sinks), facts)
    # The Upsert decides: it is the last.
    in_order = sorted(sinks, key=lambda sink: isinstance(sink, Upsert))
    whole = replace(facts, has_unavailable_values=False)  # an Append has no older change to take a value from
    *others, main = (sink.find_traits(whole) for sink in in_order)
    return replace(
        main,
        target=" and ".join(sink.target for sink in in_order),
        needs_last_records_only=False,
        not_copyable=_NOT_COPYABLE,
        others=tuple(
            replace(other, key_columns=main.key_columns, keeps_deletes=main.keeps_deletes) for other in others
        ),
    )


def _check_together(sinks: Sequence[Sink]) -> None:
    if not sinks:
        raise ConfigurationError("expected a sink or several of them, found none")
    if other := next((sink for sink in sinks if not isinstance(sink, Append | Upsert)), None):
        raise _error(sinks, f"{type(other).__name__} does not work next to other sinks. Use two pipelines")
    tables = [TableName(sink.target) for sink in sinks]
    names = [
        name
        for sink, table in zip(sinks, tables, strict=True)
        for name in (table.name, *(table.sibling(suffix).name for suffix in sink.kind.companions))
    ]
    if len(set(names)) < len(names):
        raise _error(sinks, "two of the sinks write to one table. Give them different targets")
    if sum(isinstance(sink, Upsert) for sink in sinks) > 1:
        raise _error(sinks, "more than one of the sinks is an Upsert. Load the topic with two pipelines")
    for sink in sinks:
        if not sink.kind.keeps_every_row:
            raise _error(sinks, f"{sink.target} has history=False, so that a replay cannot retract its rows")
        if isinstance(sink, Append) and (sink.lineage != "record" or sink.layout != "plain"):
            raise _error(sinks, f"{sink.target} needs lineage='record' and layout='plain'")


def _error(sinks: Sequence[Sink], fact: str) -> ConfigurationError:
    return ConfigurationError(f"{_listed(sinks)}: {fact}.")


def _listed(sinks: Sequence[Sink]) -> str:
    return "sink=[{}]".format(", ".join(f"{type(sink).__name__}({sink.target!r})" for sink in sinks))
