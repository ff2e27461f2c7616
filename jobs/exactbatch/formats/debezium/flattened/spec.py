"""The format Flattened: change events of Debezium that ExtractNewRecordState has flattened to rows.

What a row means, its types, values that were left out and all options, is Debezium's: only where the row is, and how an
event says what happened to it, differs.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from exactbatch.errors import ConfigurationError
from exactbatch.formats.debezium.spec import Debezium

DELETED: Final = "__deleted"
OP: Final = "__op"
_ADDED: Final = "__"  # the default of add.fields.prefix


@dataclass(frozen=True)
class Flattened(Debezium):
    """Values are change events of Debezium that its transformation ExtractNewRecordState has flattened: rows, as JSON
    with or without their schema, or as Avro with a registry.

    schema       the columns of the row, as for Debezium; also fields that add.fields adds, such as
                 `"op text from '__op'"`
    unavailable, binary, epoch, times, decimals, registry   as for Debezium

    The field `__deleted` says whether an event is a delete. A null value deletes the row of its key, which the
    pipeline's `message_key` decodes: `message_key=Flattened("id int")`. So does JSON's null, which Connect's JSON
    converter writes in the mode tombstone. A value that the source left out is taken for that of an update if `__op`
    says so or, without `__op`, if the event has `__deleted`, which shows that deletes arrive.

    The transformation drops truncates, and there is no version: the offset orders the changes of a key, which
    connectors write to one partition.

    Raises ConfigurationError for a column that takes `__deleted`, and what Debezium raises.
    """

    tombstone_deletes: ClassVar[bool] = True

    version: None = field(default=None, init=False, repr=False)
    truncate: Literal["reject"] = field(default="reject", init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, own in self.field_names.items():
            if own == DELETED:
                raise ConfigurationError(
                    f"column {name!r}: Flattened makes deletes of the field {DELETED!r}, and no column. For a column "
                    f"that says what happened, add op to the connector's add.fields: \"{name} text from '__op'\"."
                )

    @property
    def unordered_columns(self) -> frozenset[str]:
        """The columns of fields that add.fields adds, such as `__lsn` and `__ts_ms`."""
        return frozenset(name for name, own in self.field_names.items() if own.startswith(_ADDED))
