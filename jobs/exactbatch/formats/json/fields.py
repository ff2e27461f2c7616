"""Read members of JSON objects by their paths, in blocks: Arrow reads nested objects, and columns are taken from them.

A path through [] gives a row for each element of an array. Then each row has an origin: the number of its object.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.columns import Field
from exactbatch.formats.bounds import check_size, measure_size
from exactbatch.member_paths import Path, Step

Positions = npt.NDArray[np.int64]


@dataclass(slots=True)
class Members:
    """The values of one field, a part of its path after the other.

    values   of the last part
    parents  for each array that gives rows, the position of each of its elements among the elements, or objects,
             of the part before it
    """

    values: pa.Array
    parents: list[Positions] = field(default_factory=list)


def members_at(values: pa.Array, path: Path) -> Members:
    """Return what a path leads to in objects or arrays that Arrow has read. A missing member or element is null."""
    members = Members(_followed(values, path.parts[0]))
    for steps in path.parts[1:]:
        parents, elements = _elements(members.values)
        members.parents.append(parents)
        members.values = _followed(elements, steps)
    return members


def in_rows(members: Sequence[Members], objects: int) -> tuple[list[pa.Array], Positions | None]:
    """Return the values of fields as columns of the same rows, and the object that each row is of: None if each object
    is one row.

    Raises ValueError if arrays that should be one array differ, and TooLarge for too many or too large rows.
    """
    deepest = max(members, key=lambda each: len(each.parents), default=None)
    if deepest is None or not deepest.parents:
        return [each.values for each in members], None
    # For each number of arrays, the position of each row's element.
    depth = len(deepest.parents)
    check_size(len(deepest.values))
    rows = [np.arange(len(deepest.values))]
    for parents in reversed(deepest.parents):
        rows.append(parents[rows[-1]])
    columns, size = [], 0
    for each in members:
        for own, parents in zip(each.parents, deepest.parents, strict=False):
            if not np.array_equal(own, parents):
                raise ValueError("the columns of one array have different numbers of elements")
        at = rows[depth - len(each.parents)]
        check_size(len(at), size := size + measure_size(each.values, at))
        columns.append(each.values if len(each.parents) == depth else each.values.take(pa.array(at)))
    assert len(rows[-1]) == 0 or rows[-1][-1] < objects
    return columns, rows[-1]


def layouts(types: Mapping[Field, pa.DataType]) -> list[tuple[pa.Schema, list[Field]]]:
    """Return schemas by which Arrow can read objects so that the path of each field leads to a value of its type, and
    the fields that each schema serves. Most often one schema does; two types of one member need two."""
    found: list[tuple[pa.DataType, list[Field]]] = []
    for each, type_ in types.items():
        nested = type_
        for step in reversed([step for part in _with_arrays(each.path) for step in part]):
            nested = pa.struct([(step, nested)]) if isinstance(step, str) else pa.list_(nested)
        for number, (other, served) in enumerate(found):
            if (merged := _merged(other, nested)) is not None:
                found[number] = (merged, [*served, each])
                break
        else:
            found.append((nested, [each]))
    return [(pa.schema(list(nested)), served) for nested, served in found]


def _with_arrays(path: Path) -> Iterable[tuple[Step, ...]]:
    """Return the parts of a path with a step into each array between two of them."""
    *arrays, last = path.parts
    return [*((*part, 0) for part in arrays), last]


def _merged(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type of values that have the members of both types; None if a value cannot have both."""
    if pa.types.is_list(one) and pa.types.is_list(other):
        element = _merged(one.value_type, other.value_type)
        return None if element is None else pa.list_(element)
    if not (pa.types.is_struct(one) and pa.types.is_struct(other)):
        return one if one == other else None
    types = {each.name: each.type for each in one}
    for each in other:
        merged = _merged(types[each.name], each.type) if each.name in types else each.type
        if merged is None:
            return None
        types[each.name] = merged
    return pa.struct(list(types.items()))


def _followed(values: pa.Array, steps: Iterable[Step]) -> pa.Array:
    for step in steps:
        if isinstance(step, str):
            values = pc.struct_field(values, [values.type.get_field_index(step)])
        else:
            values = _element(values, step)
    return values


def _bounds(arrays: pa.ListArray) -> tuple[Positions, Positions]:
    """Return the position of the first element of each array, and how many elements it has; none if it is null."""
    offsets = arrays.offsets.to_numpy().astype(np.int64)
    valid = arrays.is_valid().to_numpy(zero_copy_only=False)
    return offsets[:-1], np.where(valid, np.diff(offsets), 0)


def _element(arrays: pa.ListArray, number: int) -> pa.Array:
    """Return one element of each array; null if there is none."""
    starts, lengths = _bounds(arrays)
    return arrays.values.take(pa.array(starts + number, mask=lengths <= number))


def _elements(arrays: pa.ListArray) -> tuple[Positions, pa.Array]:
    """Return the elements of all arrays, and which array each of them is of."""
    starts, lengths = _bounds(arrays)
    parents = np.repeat(np.arange(len(arrays)), lengths)
    before = np.cumsum(lengths) - lengths
    within = np.arange(len(parents)) - before[parents]
    return parents, arrays.values.take(pa.array(starts[parents] + within))


def filled(values: pa.Array, missing: Callable[[], pa.BooleanArray], default: Any) -> pa.Array:
    """Return values with a default, a scalar of their type, in place of the missing ones; a null that is written
    stays. Raise TooLarge if they become too large."""
    if not values.null_count:
        return values
    is_missing = missing()
    check_size(0, is_missing.true_count * pa.repeat(default, 1).nbytes)
    return pc.if_else(is_missing, default, values)
