"""Values that a function of the pipeline's author decodes: its result is checked."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.errors import ConfigurationError, ExactbatchError, TasksFailed
from exactbatch.formats.custom.spec import INDEX, Custom
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoder import Decoder, decode_block_or_halves, positions
from exactbatch.formats.postgres_limits import check_rows, find_unstorable

_SHOWN: Final = 5  # wrong indexes in a message


class CustomDecoder(Decoder[Custom]):
    """Decodes values with one call of the function for each block."""

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode n values with one call of the function."""
        given = pa.record_batch({INDEX: positions(values), "value": values}).filter(values.is_valid())
        rows, rejects = self._called(given)
        rows = rows.sort_by(INDEX)
        names = [column.name for column in self.spec.columns]
        stored = decode_block_or_halves(
            rows.select(names), rows.column(INDEX), self._storable, self._find_refused
        )
        refused = tuple(sorted([*rejects.items(), *stored.rejects]))
        return Decoded(stored.rows, stored.kept, refused, values.null_count)

    def _storable(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        check_rows(rows, self.spec.columns)
        return rows

    def _find_refused(self, rows: pa.RecordBatch) -> Iterator[tuple[int, str]]:
        for column, values in zip(self.spec.columns, rows.columns, strict=True):
            yield from find_unstorable(column, values)

    def _called(self, given: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Call the function and check its result."""
        schema = {INDEX: pa.int64(), **{column.name: column.arrow_type for column in self.spec.columns}}
        if len(given) == 0:
            return pa.RecordBatch.from_pylist([], pa.schema(schema)), {}
        try:
            returned: Any = self.spec.function(given)
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
        self._check_complete(given.column(INDEX), rows.column(INDEX), rejects)
        return rows, dict(rejects)

    def _check_complete(self, given: pa.Array, rows: pa.Array, rejects: Mapping[Any, Any]) -> None:
        """Check that every value is one row or one reject."""
        if not all(isinstance(index, int) and isinstance(why, str) and why for index, why in rejects.items()):
            raise self._mistake(f"rejects as a mapping of {INDEX} to a reason", repr(dict(rejects))[:200])
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
                raise self._mistake(f"one row or reject for each {INDEX}", f"{what} {len(wrong)}: {shown}")

    @property
    def _name(self) -> str:
        return str(getattr(self.spec.function, "__qualname__", repr(self.spec.function)))

    def _mistake(self, expected: str, found: str) -> ConfigurationError:
        return ConfigurationError(
            f"function {self._name} of the format Custom: expected {expected}, found {found}. Nothing was "
            f"written. Correct the function."
        )


def _not_in(these: pa.Array, those: pa.Array) -> pa.BooleanArray:
    return pc.invert(pc.is_in(these, those))


def _repeated(indexes: pa.Array) -> pa.Array:
    counts = indexes.value_counts()
    return counts.field("values").filter(pc.greater(counts.field("counts"), 1))


def _listed(schema: Mapping[str, pa.DataType]) -> str:
    return ", ".join(f"{name} {type_}" for name, type_ in schema.items())
