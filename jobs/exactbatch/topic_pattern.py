"""Topics that are named by a regular expression instead of one by one. Pure, no I/O."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from exactbatch.errors import ConfigurationError
from exactbatch.options import check_types, list_values

# Kafka's own topics, and those that tools keep for themselves: __debezium-heartbeat.shop, __amazon_msk_canary.
_INTERNAL_PREFIX: Final = "__"


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """All topics whose whole name matches a regular expression of Python, now and in future.

    Internal topics, whose names begin with two underscores, never match.

    Raises ConfigurationError if the expression is not valid.
    """

    regex: str

    def __post_init__(self) -> None:
        check_types(self)
        try:
            _compiled(self.regex)
        except re.error as error:
            raise ConfigurationError(
                f"expected a topic pattern as a regular expression of Python, found {self.regex!r}: {error}"
            ) from None

    def match(self, topic: str) -> re.Match[str] | None:
        """Return the match of a whole name; None for other topics and for internal ones."""
        return None if topic.startswith(_INTERNAL_PREFIX) else _compiled(self.regex).fullmatch(topic)

    def matches(self, topic: str) -> bool:
        """True if the pattern stands for this topic."""
        return self.match(topic) is not None

    def __str__(self) -> str:
        return f"topics that match {self.regex!r}"


Topics = Sequence[str] | TopicPattern


def list_topics(written: str | tuple[str, ...] | TopicPattern) -> tuple[str, ...] | TopicPattern:
    """Return the names of topics, or their pattern, as a user writes them: one name may stand by itself."""
    return written if isinstance(written, TopicPattern) else list_values(written)


def loads(topics: Topics, topic: str) -> bool:
    """True if a topic is named, or matches the pattern."""
    return topics.matches(topic) if isinstance(topics, TopicPattern) else topic in topics


def known_topics(topics: Topics, stored: Iterable[str]) -> tuple[str, ...]:
    """Return the named topics; for a pattern, those topics with stored offsets that match it: they have joined."""
    if isinstance(topics, TopicPattern):
        return tuple(sorted({topic for topic in stored if topics.matches(topic)}))
    return tuple(topics)


def topics_text(topics: Topics) -> str:
    """Name the topics in a sentence."""
    return str(topics) if isinstance(topics, TopicPattern) else ", ".join(topics)


@cache
def _compiled(regex: str) -> re.Pattern[str]:
    return re.compile(regex)
