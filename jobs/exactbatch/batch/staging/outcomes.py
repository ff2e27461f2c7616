"""The data that tasks return to the driver: no code, so that whoever answers instead of a task can run no code on the
driver."""

from typing import Any, Final, TypeVar

import msgspec

from exactbatch import errors
from exactbatch.errors import ConfigurationError, ExactbatchError, RefusedRecord, TargetMismatch

Class = TypeVar("Class", bound=type)

_ERRORS: Final[dict[str, type[ExactbatchError]]] = {
    name: each
    for name, each in vars(errors).items()
    if isinstance(each, type) and issubclass(each, ExactbatchError)
}
_classes: Final[dict[str, type]] = {}
_ERROR: Final = "error"


class _Error(msgspec.Struct):
    kind: str
    message: str
    topic: str | None = None
    partition: int | None = None
    from_offset: int | None = None
    until_offset: int | None = None
    batch_id: int | None = None
    column: str | None = None
    constraint: str | None = None
    sqlstate: str | None = None
    refused: list[RefusedRecord] = []


def declare_outcome(class_: Class) -> Class:
    """Let tasks return the instances of a dataclass, whose fields are numbers, text, or dataclasses of these."""
    _classes[class_.__name__] = class_
    return class_


def dump(outcome: object) -> bytes:
    """Return an outcome or a list of them as JSON, to send it from an executor to the driver."""
    several = outcome if isinstance(outcome, list) else [outcome]
    return msgspec.json.encode([_named(each) for each in several])


def load(data: bytes) -> list[Any]:
    """Return the outcomes that dump() has written. An error is returned, and not raised.

    Raises ConfigurationError for anything else.
    """
    try:
        named = msgspec.json.decode(data, type=list[tuple[str, msgspec.Raw]])
        return [_instance(name, content) for name, content in named]
    except (msgspec.DecodeError, KeyError) as error:
        raise ConfigurationError(
            f"a task returned {data[:50]!r}, which is not a task outcome that this version of exactbatch knows: "
            f"{type(error).__name__}: {error}. Install the same version on the driver, on its executors and on the "
            f"Spark Connect server."
        ) from error


def _named(outcome: object) -> tuple[str, object]:
    if not isinstance(outcome, ExactbatchError):
        name = type(outcome).__name__
        assert _classes[name] is type(outcome)
        return name, outcome
    # An error of a pipeline's own is the one that it derives from.
    kind = next(each for each in type(outcome).__mro__ if _ERRORS.get(each.__name__) is each)
    attributes = {name: getattr(outcome, name) for name in _PLACE}
    refused = list(outcome.refused) if isinstance(outcome, TargetMismatch) else []
    return _ERROR, _Error(kind.__name__, str(outcome), refused=refused, **attributes)


_PLACE: Final = tuple(name for name in _Error.__struct_fields__ if name not in ("kind", "message", "refused"))


def _instance(name: str, content: msgspec.Raw) -> Any:
    if name != _ERROR:
        return msgspec.json.decode(content, type=_classes[name])
    found = msgspec.json.decode(content, type=_Error)
    error = _ERRORS[found.kind](found.message, **{name: getattr(found, name) for name in _PLACE})
    if found.refused and isinstance(error, TargetMismatch):
        error.refused = found.refused
    return error
