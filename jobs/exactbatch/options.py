"""Check that the options of a pipeline, format or sink have the types that their fields declare."""

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from functools import wraps
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin

from exactbatch.errors import ConfigurationError

_Class = TypeVar("_Class", bound=type)
_Value = TypeVar("_Value")


# What an option was called before, by class.
_NOW: Final[Mapping[str, Mapping[str, str]]] = {
    "Pipeline": {
        "key": "message_key",
        "sql": "transform",
        **dict.fromkeys(
            ("max_connections", "read_timeout", "publish_timeout", "statement_timeout", "launch_timeout"),
            "tuning",
        ),
    },
    "Tuning": {"publish_timeout": "lock_timeout"},
    "Limits": {"max_records": "max_offsets", "max_records_per_partition": "max_offsets_per_partition"},
    "Connections": {"spark_history": "spark_history_url"},
    "WithKeyAndHeaders": {"header": "headers"},
    "Avro": {"columns": "fields"},
    "Append": {"smallest_partition": "min_offsets"},
    "ToTopic": {"key": "keyed_by"},
    "Aggregate": {
        "by": "group_by",
        "measures": "aggregates",
        "final_after": "allowed_lateness",
        "late": "on_late",
    },
}


def names_options(class_: _Class) -> _Class:
    """Let a dataclass refuse an option that it does not have by naming the one that is meant."""
    init: Callable[..., None] = vars(class_)["__init__"]
    names = [field.name for field in fields(class_) if field.init]

    @wraps(init)
    def init_or_refuse(self: Any, *args: Any, **options: Any) -> None:
        for name in sorted(options.keys() - set(names)):
            close = [_NOW.get(class_.__name__, {}).get(name), *get_close_matches(name, names, n=1)]
            meant = next((f"Write {each} instead." for each in close if each), f"It has {', '.join(names)}.")
            raise ConfigurationError(f"{class_.__name__} has no option {name!r}. {meant}")
        init(self, *args, **options)

    setattr(class_, "__init__", init_or_refuse)  # noqa: B010  # mypy takes an assignment for an override
    return class_


def check_types(options: Any, what: str = "") -> None:
    """Raise ConfigurationError if the value of a dataclass field is not of the type that the field declares.

    A list is accepted as a tuple. Only functions declare their types as strings, since these name libraries that are
    not imported. The message does not show values of fields with repr=False, which may hold secrets.
    """
    for field in fields(options):
        value = getattr(options, field.name, None)
        if not field.init or _fits(value, field.type):
            continue
        shown = f"{value!r} ({type(value).__name__})" if field.repr else type(value).__name__
        raise ConfigurationError(
            f"{what or type(options).__name__}: expected {field.name} to be {_written(field.type)}, found {shown}"
        )


def list_values(written: _Value | tuple[_Value, ...]) -> tuple[_Value, ...]:
    """Return the values of an option that takes one value or several, as a tuple or list."""
    return tuple(written) if isinstance(written, tuple | list) else (written,)


def _fits(value: object, type_: Any) -> bool:
    of, parts = get_origin(type_), get_args(type_)
    if type_ is Any:
        return True
    if isinstance(type_, str):
        return (
            callable(value)
            or (value is None and type_.endswith("| None"))
            or (isinstance(value, str) and type_.startswith("str |"))
        )
    if of in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if of is Literal:
        return value in parts
    if of in (tuple, Sequence):
        return isinstance(value, tuple | list) and all(_fits(item, parts[0]) for item in value)
    if of is Mapping:
        return isinstance(value, Mapping) and all(
            _fits(key, parts[0]) and _fits(item, parts[1]) for key, item in value.items()
        )
    if isinstance(value, bool):
        return type_ is bool
    return isinstance(value, (int, float) if type_ is float else of or type_)


def _written(type_: Any) -> str:
    """Return a type as it is written in a program, without the modules of its parts."""
    of, parts = get_origin(type_), get_args(type_)
    if isinstance(type_, str):
        return "text or a function" if type_.startswith("str |") else "a function"
    if of in (Union, types.UnionType):
        return " or ".join(map(_written, parts))
    if of is Literal:
        return " or ".join(map(repr, parts))
    if of is Sequence:
        return f"a list of {_written(parts[0])}"
    if of is tuple:
        return f"a tuple of {_written(parts[0])}"
    if of is Mapping:
        return f"{{{_written(parts[0])}: {_written(parts[1])}}}"
    return "None" if type_ is types.NoneType else str(getattr(type_, "__name__", type_))
