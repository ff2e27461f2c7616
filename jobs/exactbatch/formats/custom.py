"""The format Custom: your own function decodes the values."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from exactbatch.columns import Column, parse_columns
from exactbatch.errors import ConfigurationError, ExactbatchError, TasksFailed
from exactbatch.formats.format import Decoded, decode_block_or_halves, positions
from exactbatch.formats.postgres_limits import check_rows, find_unstorable
from exactbatch.options import check_types

if TYPE_CHECKING:
    import pyarrow as pa

_INDEX: Final = "value_index"
_SHOWN: Final = 5  # wrong indexes in a message


@dataclass(frozen=True)
class Custom:
    """`function` decodes values into rows with the columns of `schema`, or rejects them.

    Its argument is a RecordBatch of `value_index` (int64) and `value` (binary), without null values. It returns a
    RecordBatch of `value_index` and the columns of `schema`, in any order, and a mapping of value_index to the reason
    for each value that it rejects. Every value has to give one row or one reject, and the same row each time: a retry
    and a replay decode again.

    The result is checked: an invalid result, or an exception other than OSError and MemoryError, raises
    ConfigurationError and ends the batch; after an OSError the batch is retried. A row that Postgres cannot store is a
    reject. A null value is a tombstone.
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
                f"column {_INDEX!r} in {self.schema!r} is reserved for the index of a row's value: rename the column"
            )

    def decode(self, values: "pa.BinaryArray") -> Decoded:
        """Decode n values with one call of the function."""
        import pyarrow as pa

        given = pa.record_batch({_INDEX: positions(values), "value": values}).filter(values.is_valid())
        rows, rejects = self._called(given)
        rows = rows.sort_by(_INDEX)
        names = [column.name for column in self.columns]
        stored = decode_block_or_halves(
            rows.select(names), rows.column(_INDEX), self._storable, self._find_refused
        )
        refused = tuple(sorted([*rejects.items(), *stored.rejects]))
        return Decoded(stored.rows, stored.kept, refused, values.null_count)

    def _storable(self, rows: "pa.RecordBatch") -> "pa.RecordBatch":
        check_rows(rows, self.columns)
        return rows

    def _find_refused(self, rows: "pa.RecordBatch") -> Iterator[tuple[int, str]]:
        for column, values in zip(self.columns, rows.columns, strict=True):
            yield from find_unstorable(column, values)

    def _called(self, given: "pa.RecordBatch") -> "tuple[pa.RecordBatch, dict[int, str]]":
        """Call the function and check its result."""
        import pyarrow as pa

        schema = {_INDEX: pa.int64(), **{column.name: column.arrow_type for column in self.columns}}
        if len(given) == 0:
            return pa.RecordBatch.from_pylist([], pa.schema(schema)), {}
        try:
            returned: Any = self.function(given)
        except (ExactbatchError, MemoryError):
            raise
        except OSError as error:
            raise TasksFailed(
                f"function {self._name} of the format Custom raised {type(error).__name__}: {error}. Nothing was "
                f"written; the next try reads the same ranges. If the error persists, correct the function, or what "
                f"it calls."
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
        returned = {field.name: field.type for field in rows.schema}
        if returned != schema or len(rows.schema) != len(schema):
            raise self._mistake(f"rows with the columns {_listed(schema)}", f"{_listed(returned)}")
        try:
            rows.validate(full=True)
        except ValueError as error:
            raise self._mistake("valid Arrow data", str(error)) from error
        self._check_complete(given.column(_INDEX), rows.column(_INDEX), rejects)
        return rows, dict(rejects)

    def _check_complete(self, given: "pa.Array", rows: "pa.Array", rejects: Mapping[Any, Any]) -> None:
        """Check that every value is one row or one reject."""
        import pyarrow as pa

        if not all(isinstance(index, int) and isinstance(why, str) and why for index, why in rejects.items()):
            raise self._mistake(f"rejects as a mapping of {_INDEX} to a reason", repr(dict(rejects))[:200])
        returned = pa.concat_arrays([rows, pa.array(list(rejects), pa.int64())])
        if returned.sort().equals(given):
            return
        once = returned.unique()
        for what, wrong in (
            ("no row or reject for", given.filter(_not_in(given, once))),
            ("a row or reject without a value for", once.filter(_not_in(once, given))),
            ("several rows or rejects for", _repeated(returned)),
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
