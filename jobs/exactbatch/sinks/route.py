"""Route: each row goes to one of several targets, by the value of a column."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from exactbatch.errors import ConfigurationError
from exactbatch.options import check_types, list_values, names_options
from exactbatch.sinks.sink import Routed, Sink


@names_options
@dataclass(frozen=True)
class Route:
    """Store each row in one of several targets, all of them in one transaction, after one read of the topic.

    by       a column of the pipeline, of type text: a field of the value, a header, the schema_name of Avro
             or Protobuf, or Debezium's source_table
    to       the sink for each value of this column; values with equal sinks share a target
    rest     the sink for all other values, and for null; None: their records are rejects
    columns  the columns that a target has, by its name, such as `{"public.orders": ("id", "total")}`; a target that is
             not named here has all columns of the pipeline

    Each sink is an Append or an Upsert, as in a list of sinks. All Upserts have the same `version`.

    Raises ConfigurationError for fewer than two targets, and for columns of a target that is none of them.
    """

    by: str
    to: Mapping[str, Sink]
    rest: Sink | None = None
    columns: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(self)
        if len(self.sinks) < 2:
            raise ConfigurationError(
                f"Route(by={self.by!r}): expected two targets or more, found {len(self.sinks)}. For one target, give "
                f"the pipeline its sink."
            )
        targets = [sink.target for sink in self.sinks]
        if unknown := [name for name in self.columns if name not in targets]:
            raise ConfigurationError(
                f"Route(by={self.by!r}): expected the columns of a target, {', '.join(targets)}, found those of "
                f"{unknown[0]!r}"
            )

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The different sinks, in the order in which they are written."""
        found: list[Sink] = []
        for sink in (*self.to.values(), *(() if self.rest is None else (self.rest,))):
            if sink not in found:
                found.append(sink)
        return tuple(found)

    def find_route(self, sink: Sink) -> Routed:
        """Return which rows and columns go to one of the sinks."""
        return Routed(
            by=self.by,
            values=tuple(value for value, its in self.to.items() if its == sink),
            elsewhere=tuple(value for value, its in self.to.items() if its != sink),
            takes_rest=sink == self.rest,
            has_rest=self.rest is not None,
            columns=tuple(list_values(self.columns.get(sink.target, ()))),
        )
