"""A format of the user's own: a function from values to rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from exactbatch.columns import Column, parse_columns
from exactbatch.errors import ConfigurationError, ExactbatchError, TasksFailed
from exactbatch.formats.format import Decoded, decode_block_or_halves, positions
from exactbatch.formats.postgres_limits import check_rows
from exactbatch.options import check_types

if TYPE_CHECKING:
    import pyarrow as pa

_INDEX: Final = "value_index"
_SHOWN: Final = 5  # mistaken indexes in a message


@dataclass(frozen=True)
class Custom:
    """`function` makes of values rows with the columns of `schema`, or rejects.

    It is given a RecordBatch of `value_index` (int64) and `value` (binary), of values that are not null. It
    returns a RecordBatch of `value_index` and the columns of `schema`, in any order, and a mapping of value_index
    to the reason for each value that it refuses. Every value has to be one row or one reject, and the same rows
    each time: a retry and a replay decode again.

    What it returns is checked: a mistake, or an exception other than OSError, is a ConfigurationError and ends
    the batch; after an OSError the batch is tried again. A row that Postgres could not store is a reject. A null
    value is a tombstone.
    """

    null_is_tombstone: ClassVar[bool] = True
    tombstone_deletes: ClassVar[bool] = True

    function: "Callable[[pa.RecordBatch], tuple[pa.RecordBatch, Mapping[int, str]]]"
    schema: str
    columns: tuple[Column, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_types(self)
        object.__setattr__(self, "columns", parse_columns(self.schema))
        if _INDEX in [column.name for column in self.columns]:
            raise ConfigurationError(
                f"expected columns beside {_INDEX}, which tells the value of a row, found it in {self.schema!r}: "
                f"rename it"
            )

    def decode(self, values: "pa.BinaryArray") -> Decoded:
        """Decode n values with one call of the function."""
        import pyarrow as pa

        given = pa.record_batch({_INDEX: positions(values), "value": values}).filter(values.is_valid())
        rows, rejects = self._called(given)
        rows = rows.sort_by(_INDEX)
        names = [column.name for column in self.columns]
        stored = decode_block_or_halves(rows.select(names), rows.column(_INDEX), self._storable)
        refused = tuple(sorted([*rejects.items(), *stored.rejects]))
        return Decoded(stored.rows, stored.kept, refused, values.null_count)

    def _storable(self, rows: "pa.RecordBatch") -> "pa.RecordBatch":
        check_rows(rows, self.columns)
        return rows

    def _called(self, given: "pa.RecordBatch") -> "tuple[pa.RecordBatch, dict[int, str]]":
        """What the function returns, checked."""
        import pyarrow as pa

        schema = {_INDEX: pa.int64(), **{column.name: column.arrow_type for column in self.columns}}
        if len(given) == 0:
            return pa.RecordBatch.from_pylist([], pa.schema(schema)), {}
        try:
            returned: Any = self.function(given)
        except ExactbatchError:
            raise
        except OSError as error:
            raise TasksFailed(
                f"function {self._name} of the format Custom raised {type(error).__name__}: {error}. Nothing was "
                f"written; the next try reads the same ranges. If it stays, correct the function or what it asks."
            ) from error
        except Exception as error:
            raise self._mistake("rows and rejects", f"{type(error).__name__}: {error}") from error
        match returned:
            case (pa.RecordBatch() as rows, Mapping() as rejects):
                pass
            case _:
                raise self._mistake(
                    "a pair of a pyarrow.RecordBatch and a mapping of rejects", f"{type(returned).__name__}"
                )
        found = {field.name: field.type for field in rows.schema}
        if found != schema or len(rows.schema) != len(schema):
            raise self._mistake(f"rows with the columns {_listed(schema)}", f"{_listed(found)}")
        try:
            rows.validate(full=True)
        except ValueError as error:
            raise self._mistake("valid Arrow data", str(error)) from error
        self._check_complete(given.column(_INDEX), rows.column(_INDEX), rejects)
        return rows, dict(rejects)

    def _check_complete(self, given: "pa.Array", rows: "pa.Array", rejects: Mapping[Any, Any]) -> None:
        """Every value is one row or one reject."""
        import pyarrow as pa

        if not all(isinstance(index, int) and isinstance(why, str) and why for index, why in rejects.items()):
            raise self._mistake(f"rejects as a mapping of {_INDEX} to a reason", repr(dict(rejects))[:200])
        told = pa.concat_arrays([rows, pa.array(list(rejects), pa.int64())])
        if told.sort().equals(given):
            return
        once = told.unique()
        for what, wrong in (
            ("no row or reject for", given.filter(_not_in(given, once))),
            ("a row or reject of no value for", once.filter(_not_in(once, given))),
            ("several rows or rejects for", _repeated(told)),
        ):
            if len(wrong):
                shown = ", ".join(map(str, wrong[:_SHOWN].to_pylist()))
                raise self._mistake(f"one row or reject for each {_INDEX}", f"{what} {len(wrong)}: {shown}")

    @property
    def _name(self) -> str:
        return str(getattr(self.function, "__qualname__", repr(self.function)))

    def _mistake(self, expected: str, found: str) -> ConfigurationError:
        return ConfigurationError(
            f"function {self._name} of the format Custom: expected {expected}, found {found}. Nothing was "
            f"written. Correct the function."
        )


def _not_in(these: "pa.Array", those: "pa.Array") -> "pa.BooleanArray":
    import pyarrow.compute as pc

    return pc.invert(pc.is_in(these, those))


def _repeated(indexes: "pa.Array") -> "pa.Array":
    import pyarrow.compute as pc

    counts = indexes.value_counts()
    return counts.field("values").filter(pc.greater(counts.field("counts"), 1))


def _listed(schema: "Mapping[str, pa.DataType]") -> str:
    return ", ".join(f"{name} {type_}" for name, type_ in schema.items())
