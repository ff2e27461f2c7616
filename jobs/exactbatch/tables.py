"""Many tables: one pipeline for each topic, run by one DAG."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from exactbatch.errors import ConfigurationError, ExactbatchError, TablesFailed, TablesUnfinished
from exactbatch.options import check_types
from exactbatch.pipeline import Pipeline, check_name
from exactbatch.topic_pattern import TopicPattern, list_topics, loads, topics_text

_GROUP = "table"  # of a pattern: what it matches is the name of the table


@dataclass(frozen=True, slots=True)
class TableTopic:
    """A topic for which Tables needs a pipeline.

    topic  its name
    table  the part of its name that the pattern's group `table` matches; without one, what follows the last dot
    name   the name that the pipeline must have: `<name of the Tables>.<table>`
    """

    topic: str
    table: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Tables:
    """One pipeline for each of many topics: each is exact by itself, and one DAG runs all of them.

    topics      names, or a TopicPattern: topics that match it join when a run is planned
    pipeline    a function from a TableTopic to its Pipeline, the *member*; None leaves the topic out
    at_a_time   how many members a driver processes at the same time
    spark_conf  Spark properties of the driver that processes all members

    Raises ConfigurationError for values that cannot work.
    """

    name: str
    topics: str | tuple[str, ...] | TopicPattern
    pipeline: "Callable[[TableTopic], Pipeline | None]"
    at_a_time: int = 4
    spark_conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(self)
        check_name(self.name)
        if not self.topics:
            raise self._error(f"expected topics as names or a TopicPattern, found {self.topics!r}")
        if self.at_a_time < 1:
            raise self._error(f"expected at_a_time to be 1 or more, found {self.at_a_time}")

    def _error(self, fact: str) -> ConfigurationError:
        return ConfigurationError(f"tables {self.name!r}: {fact}")

    @property
    def prefix(self) -> str:
        """What the names of all members begin with."""
        return f"{self.name}."

    @property
    def topic_names(self) -> tuple[str, ...] | TopicPattern:
        """The names of the topics, or their pattern."""
        return list_topics(self.topics)

    @property
    def topics_text(self) -> str:
        """The topics, for a sentence."""
        return topics_text(self.topic_names)

    def loads(self, topic: str) -> bool:
        """True if a topic has a member, unless the function leaves it out."""
        return loads(self.topic_names, topic)

    def find_table(self, topic: str) -> TableTopic:
        """Return what the function gets for a topic. Raises ConfigurationError if it has no name of a table."""
        table: str | None = topic.rpartition(".")[2]
        if isinstance(self.topics, TopicPattern):
            match = self.topics.match(topic)
            if match is not None and _GROUP in match.re.groupindex:
                table = match[_GROUP]
        if not table:
            raise self._error(
                f"no table name can be taken from the topic {topic!r}. Add a group to the pattern that matches one: "
                f"(?P<table>.+)"
            )
        return TableTopic(topic, table, f"{self.prefix}{table}")

    def member(self, topic: str) -> Pipeline | None:
        """Return the pipeline of a topic; None if the function leaves it out. Raises ConfigurationError."""
        if not self.loads(topic):
            raise self._error(f"the topic {topic!r} is none of {self.topics_text}")
        wanted = self.find_table(topic)
        try:
            pipeline = self.pipeline(wanted)
        except Exception as error:  # the user's own code
            raise self._error(
                f"its function raises {type(error).__name__} for the topic {topic!r}: {error}. Correct it, or let it "
                f"return None for a topic that is to be left out."
            ) from error
        if pipeline is None:
            return None
        if not isinstance(pipeline, Pipeline):
            raise self._error(
                f"expected its function to return a Pipeline or None for {topic!r}, found {pipeline!r}"
            )
        if (pipeline.name, pipeline.topic_names) != (wanted.name, (topic,)):
            raise self._error(
                f"expected its function to return a Pipeline(name={wanted.name!r}, topics={topic!r}, …) for the "
                f"topic {topic!r}, found name={pipeline.name!r}, topics={pipeline.topic_names!r}. Write "
                f"Pipeline(name=t.name, topics=t.topic, …)."
            )
        if pipeline.forward is not None:
            raise self._error(
                f"{wanted.name} forwards its results to {pipeline.forward.topic!r}, for which this DAG has no task. "
                f"Give it a DAG of its own: leave {topic!r} out here, and load it with pipeline_dag()."
            )
        return pipeline

    def members(self, topics: Iterable[str]) -> list[Pipeline]:
        """Return the pipelines of topics, by name. Raises what member() and possible_members() raise."""
        members, unmade = self.possible_members(topics)
        for error in unmade.values():
            raise error
        return members

    def possible_members(
        self, topics: Iterable[str], registered: Collection[str] = ()
    ) -> tuple[list[Pipeline], dict[str, ConfigurationError]]:
        """Return the pipelines of topics, by name, and the errors of topics without one, by the member's name.

        These are what member() raises, and an error for topics whose members would have the same name. If one of such
        topics is `registered`, it keeps its member, and the errors of the others are found by their topics.
        """
        by_name: dict[str, dict[str, Pipeline]] = {}
        unmade: dict[str, ConfigurationError] = {}
        for topic in sorted(set(topics)):
            try:
                pipeline = self.member(topic)
            except ConfigurationError as error:
                unmade[self.name_member(topic)] = error
                continue
            if pipeline is not None:
                by_name.setdefault(pipeline.name, {})[topic] = pipeline
        found: list[Pipeline] = []
        for name, members in sorted(by_name.items()):
            kept = [topic for topic in members if topic in registered] if len(members) > 1 else list(members)
            if len(kept) == 1:
                found.append(members[kept[0]])
                unmade |= {
                    topic: self._same_name(name, list(members)) for topic in members if topic not in kept
                }
            else:
                unmade[name] = self._same_name(name, list(members))
        return found, unmade

    def _same_name(self, name: str, topics: list[str]) -> ConfigurationError:
        both = "both" if len(topics) == 2 else "all"
        listed = f"{', '.join(map(repr, topics[:-1]))} and {topics[-1]!r}"
        return self._error(
            f"the topics {listed} would {both} be {name!r}. Let a group of the pattern match what tells them apart: "
            f"(?P<table>.+)"
        )

    def name_member(self, topic: str) -> str:
        """Return the name of a topic's member; the topic itself if it gives none."""
        try:
            return self.find_table(topic).name
        except ConfigurationError:
            return topic


def listed_errors(errors: Mapping[str, ExactbatchError]) -> str:
    """Return the names of members with their errors, for a sentence."""
    return "; ".join(f"{member}: {type(error).__name__}: {error}" for member, error in errors.items())


def build_failure(
    found: Pipeline | Tables, errors: Mapping[str, ExactbatchError], *, others: int
) -> ExactbatchError:
    """Return the error of a pipeline, or one that names all members that failed; `others` is how many did not."""
    if isinstance(found, Pipeline):
        return next(iter(errors.values()))
    may_help = any(error.retryable for error in errors.values())
    return (TablesUnfinished if may_help else TablesFailed)(
        f"{len(errors)} of {len(errors) + others} tables of {found.name!r} failed; the others are done: "
        f"{listed_errors(errors)}"
    )
