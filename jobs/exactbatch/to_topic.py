"""ToTopic: the topic to which the results of a pipeline are forwarded, and what a message has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.options import check_types, list_values, names_options

# Kafka's rule for names of topics.
_NAME_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_NAME_LENGTH: Final = 249


def is_topic_name(text: str) -> bool:
    """True if a topic can have this name."""
    return 0 < len(text) <= _NAME_LENGTH and _NAME_CHARACTERS.issuperset(text) and text not in (".", "..")


@names_options
@dataclass(frozen=True)
class ToTopic:
    """Forward what each batch commits to `topic`, exactly once for a consumer with isolation.level=read_committed.

    keyed_by     the columns of the message key. For an Append, any columns, or none: messages then have no key. For a
                 sink with a key (Upsert, Aggregate) the columns of that key, which are the default
    value        the columns of the value, in their order; None: all columns of the pipeline, or of the result
    key_format   "json": an object, {"carrier":"UA"}; "text": the text of the only key column
    numbers      "number": numeric and bigint are JSON numbers; "text": they are JSON strings, for consumers that read
                 numbers as double precision
    compression  of the messages
    max_bytes    the most bytes that key and value of a message may have together; a batch with a larger one fails.
                 The topic's max.message.bytes must be at least 1,024 bytes more

    The topic must exist. Raises ConfigurationError for values that cannot work.
    """

    topic: str
    keyed_by: str | tuple[str, ...] = ()
    value: str | tuple[str, ...] | None = None
    key_format: Literal["json", "text"] = "json"
    numbers: Literal["number", "text"] = "number"
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "lz4"
    max_bytes: int = 1_000_000

    def __post_init__(self) -> None:
        check_types(self)
        if not is_topic_name(self.topic):
            raise ConfigurationError(
                f"ToTopic: expected the name of a topic, 1 to {_NAME_LENGTH} letters, digits, '.', '_' and '-', found "
                f"{self.topic!r}"
            )
        if self.value_columns == ():
            raise ConfigurationError(
                f"ToTopic({self.topic!r}): the value has no columns. Name some, or leave value out for all of them."
            )
        for role, names in (("key", list_values(self.keyed_by)), ("value", self.value_columns or ())):
            if len(set(names)) < len(names):
                raise ConfigurationError(
                    f"ToTopic({self.topic!r}): the {role} names a column twice: {', '.join(names)}"
                )
        if self.max_bytes < 1:
            raise ConfigurationError(
                f"ToTopic({self.topic!r}): expected max_bytes to be 1 or more, found {self.max_bytes}"
            )

    @property
    def value_columns(self) -> tuple[str, ...] | None:
        """The columns of the value; None for all of them."""
        return None if self.value is None else list_values(self.value)

    def key_columns(self, sink_key: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of the message key for a sink whose rows have this key, or ().

        Raises ConfigurationError if messages of two rows could have one key, or messages of one row two.
        """
        key = list_values(self.keyed_by) or tuple(sink_key)
        if sink_key and set(key) != set(sink_key):
            raise ConfigurationError(
                f"ToTopic({self.topic!r}): expected keyed_by to have the key columns of the sink, "
                f"({', '.join(sink_key)}), found ({', '.join(key)}). Leave keyed_by out."
            )
        if self.key_format == "text" and len(key) != 1:
            raise ConfigurationError(
                f"ToTopic({self.topic!r}): key_format='text' needs exactly one key column, found "
                f"({', '.join(key)}). Use key_format='json'."
            )
        return key

    def check(self, sink_key: Sequence[str], columns: Sequence[Column], more: Sequence[Column]) -> None:
        """Raise ConfigurationError unless key and value are among the columns of a result, or `more` of its row."""
        names = [column.name for column in (*columns, *more)]
        for role, wanted in (("key", self.key_columns(sink_key)), ("value", self.value_columns or ())):
            if missing := [name for name in wanted if name not in names]:
                raise ConfigurationError(
                    f"ToTopic({self.topic!r}): expected the {role} among the columns of a result, "
                    f"{', '.join(names)}, found {', '.join(map(repr, missing))}"
                )
