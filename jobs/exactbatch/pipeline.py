"""A pipeline, as its user writes it."""

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder

from exactbatch.errors import ConfigurationError
from exactbatch.planner import Limits, OnLoss
from exactbatch.sinks import Sink
from exactbatch.values import Format

# Kafka's own rule for topic names fits Airflow's dag ids and pools as well.
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_NAME_LENGTH = 200


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Topics, how their values are decoded, and where the rows go.

    key            how message keys are decoded: an Upsert takes from it which row a null value deletes
    start          where topics without a stored offset begin: "earliest", "latest", "group:NAME" (what that
                   consumer group has committed) or {topic: {partition: offset}}; partitions that a group or
                   mapping does not name begin at their earliest offset
    limits         how many offsets one batch may span
    on_loss        when retention removed offsets that were not processed: "fail", or "record" them as lost
    max_rejects    how many records of a batch may be rejected, as a number, or as a share of its records between
                   0 and 1; one more, and the batch fails
    read_timeout   seconds without progress after which reading a range is given up
    publish_timeout  seconds that publish waits for a lock, and that Postgres lets it sit idle in its
                   transaction: the longest time for which a driver that hangs can hold the pipeline
    spark_conf     Spark properties of the batch job

    Raises ConfigurationError for what cannot work.
    """

    name: str
    topics: tuple[str, ...]
    value: Format
    sink: Sink
    key: Format | None = None
    start: str | Mapping[str, Mapping[int, int]] = "earliest"
    limits: Limits = field(default_factory=Limits)
    on_loss: OnLoss = "fail"
    max_rejects: int | float = 0
    read_timeout: float = 60.0
    publish_timeout: float = 60.0
    spark_conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > _NAME_LENGTH or not _NAME_CHARACTERS.issuperset(self.name):
            raise ConfigurationError(
                f"expected a pipeline name of 1 to {_NAME_LENGTH} letters, digits, '.', '_' and '-', "
                f"found {self.name!r}"
            )
        if isinstance(self.topics, str) or not self.topics:
            raise ConfigurationError(
                f"pipeline {self.name!r}: expected topics as a tuple of one or more names, "
                f'found {self.topics!r}; write topics=("flights",)'
            )
        if isinstance(self.start, str) and not (
            self.start in ("earliest", "latest") or self.start.removeprefix("group:") not in ("", self.start)
        ):
            raise ConfigurationError(
                f"pipeline {self.name!r}: expected start to be 'earliest', 'latest', 'group:NAME' or "
                f"{{topic: {{partition: offset}}}}, found {self.start!r}"
            )
        if not isinstance(self.start, str):
            _check_start(self.name, self.topics, self.start)
        if self.on_loss not in ("fail", "record"):
            raise ConfigurationError(
                f"pipeline {self.name!r}: expected on_loss to be 'fail' or 'record', found {self.on_loss!r}"
            )
        share = isinstance(self.max_rejects, float)
        if self.max_rejects < 0 or (share and not 0 <= self.max_rejects <= 1):
            raise ConfigurationError(
                f"pipeline {self.name!r}: expected max_rejects to be a whole number of 0 or more, or a share "
                f"from 0.0 to 1.0, found {self.max_rejects}"
            )
        for name in ("read_timeout", "publish_timeout"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(
                    f"pipeline {self.name!r}: expected {name} to be more than 0 seconds, found "
                    f"{getattr(self, name)}"
                )
        self.sink.check(self.value.columns)
        if self.key is not None:
            self._check_key(self.key)

    def rejects_allowed(self, records: int) -> int:
        """How many of so many records may be rejected."""
        if isinstance(self.max_rejects, float):
            return int(self.max_rejects * records)
        return self.max_rejects

    def _check_key(self, key: Format) -> None:
        if {column.name for column in key.columns} != set(self.sink.key):
            raise ConfigurationError(
                f"pipeline {self.name!r}: expected key to give the key columns of the sink, "
                f"({', '.join(self.sink.key)}), found ({', '.join(column.name for column in key.columns)})"
                + ("" if self.sink.key else ": only an Upsert has a key")
            )
        for column in key.columns:
            if column not in self.value.columns:
                (other,) = (each for each in self.value.columns if each.name == column.name)
                raise ConfigurationError(
                    f"pipeline {self.name!r}, column {column.name}: expected one type in key and value, found "
                    f"{column.type} and {other.type}"
                )


def _check_start(name: str, topics: tuple[str, ...], start: Mapping[str, Mapping[int, int]]) -> None:
    """A topic that is misspelt here would begin at its earliest offset instead."""
    for topic, offsets in start.items():
        if topic not in topics:
            raise ConfigurationError(
                f"pipeline {name!r}: expected start to name topics of the pipeline, {', '.join(topics)}, "
                f"found {topic!r}"
            )
        if not isinstance(offsets, Mapping):
            raise ConfigurationError(
                f"pipeline {name!r}: expected start as {{topic: {{partition: offset}}}}, found {offsets!r} "
                f"for topic {topic!r}"
            )


def load_pipeline(reference: str) -> Pipeline:
    """Import `module:name`, as in "pipelines.flights:flights".

    Raises ConfigurationError when there is no such module, no such name in it, or it is not a Pipeline.
    """
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute or module_name.startswith("."):
        raise ConfigurationError(
            f"expected a pipeline as 'module:name', for example 'pipelines.flights:flights', "
            f"found {reference!r}"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # the module is there; something that it imports is not
        raise ConfigurationError(
            f"expected a module {module_name!r} for {reference!r}, found none: {error.name!r} cannot be "
            f"imported. A pipeline is a module in jobs/pipelines/; check the name, and PYTHONPATH."
        ) from None
    pipeline = getattr(module, attribute, None)
    if isinstance(pipeline, Pipeline):
        return pipeline
    there = sorted(name for name, value in vars(module).items() if isinstance(value, Pipeline))
    raise ConfigurationError(
        f"expected a Pipeline named {attribute!r} in {module_name}, found "
        f"{type(pipeline).__name__ if hasattr(module, attribute) else 'nothing of that name'}; "
        f"the module has: {', '.join(there) or 'no pipeline'}"
    )


def reference_of(pipeline: Pipeline) -> str:
    """The `module:name` under which a pipeline was imported, for another process to import it.

    Raises ConfigurationError when no module that can be imported again has it.
    """
    for module_name, module in list(sys.modules.items()):
        # Airflow loads a DAG file under a name that nothing can import; the pipeline's own module can be.
        if PathFinder.find_spec(module_name.partition(".")[0]) is None:
            continue
        for name, value in list(vars(module).items()):
            if value is pipeline:
                return f"{module_name}:{name}"
    raise ConfigurationError(
        f"expected pipeline {pipeline.name!r} to be a name in a module, as `flights = Pipeline(…)` in "
        f"jobs/pipelines/flights.py, found no module that has it. Move it there and import it in the DAG file."
    )
