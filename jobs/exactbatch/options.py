"""Check that the options of a pipeline, format or sink have the types that their fields declare."""

import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from exactbatch.errors import ConfigurationError

_Class = TypeVar("_Class", bound=type)


def renamed_options(**new_names: str) -> Callable[[_Class], _Class]:
    """Let a dataclass take options under their old names, given as old=new, with a DeprecationWarning."""

    def decorate(class_: _Class) -> _Class:
        init: Callable[..., None] = vars(class_)["__init__"]

        @wraps(init)
        def init_by_either_name(self: Any, *args: Any, **options: Any) -> None:
            for old, new in new_names.items():
                if old not in options:
                    continue
                if new in options:
                    raise ConfigurationError(
                        f"{class_.__name__}: {old} is the old name of {new}, and both are given. Give {new} only."
                    )
                warnings.warn(
                    f"{class_.__name__}({old}=…) is deprecated. Write {new}=… instead.",
                    DeprecationWarning,
                    stacklevel=2,
                )
                options[new] = options.pop(old)
            init(self, *args, **options)

        setattr(class_, "__init__", init_by_either_name)  # noqa: B010  # mypy takes an assignment for an override
        return class_

    return decorate


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
        if isinstance(value, str) and any(get_origin(part) is tuple for part in _alternatives(field.type)):
            shown += f'; write {field.name}=("{value}",)'
        raise ConfigurationError(
            f"{what or type(options).__name__}: expected {field.name} to be {_written(field.type)}, found {shown}"
        )


def _fits(value: object, type_: Any) -> bool:
    of, parts = get_origin(type_), get_args(type_)
    if type_ is Any:
        return True
    if isinstance(type_, str):
        return callable(value) or (value is None and type_.endswith("| None"))
    if of in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if of is Literal:
        return value in parts
    if of is tuple:
        return isinstance(value, tuple | list) and all(_fits(item, parts[0]) for item in value)
    if of is Mapping:
        return isinstance(value, Mapping) and all(
            _fits(key, parts[0]) and _fits(item, parts[1]) for key, item in value.items()
        )
    if isinstance(value, bool):
        return type_ is bool
    return isinstance(value, (int, float) if type_ is float else of or type_)


def _alternatives(type_: Any) -> tuple[Any, ...]:
    return get_args(type_) if get_origin(type_) in (Union, types.UnionType) else (type_,)


def _written(type_: Any) -> str:
    """Return a type as it is written in a program, without the modules of its parts."""
    of, parts = get_origin(type_), get_args(type_)
    if isinstance(type_, str):
        return "a function"
    if of in (Union, types.UnionType):
        return " or ".join(map(_written, parts))
    if of is Literal:
        return " or ".join(map(repr, parts))
    if of is tuple:
        return f"a tuple of {_written(parts[0])}"
    if of is Mapping:
        return f"{{{_written(parts[0])}: {_written(parts[1])}}}"
    return "None" if type_ is types.NoneType else str(getattr(type_, "__name__", type_))
