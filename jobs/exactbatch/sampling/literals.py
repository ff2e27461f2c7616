"""Literals of Python's source code, formatted as ruff formats them, and records as the source code of a test."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from math import isfinite
from typing import Any, Final
from uuid import UUID

WIDTH: Final = 88  # characters of a line
_LONGEST: Final = 110  # of a line that linters usually accept
_CHUNK: Final = 70  # characters of a part of a text that is longer
_LINE: Final = 60  # after which a record goes on in the next line


class Literal:
    """The source code of a value, and the imports that it needs.

    Raises TypeError for a value that has no literal.
    """

    def __init__(self, value: Any) -> None:
        self._value = value
        self._used: set[type] = set()
        _note_types(value, self._used)

    @property
    def imports(self) -> str:
        """Lines that import what the literal uses, and an empty line; or nothing."""
        lines = []
        moments = sorted(each.__name__ for each in self._used & {date, datetime, time, timedelta})
        if timezone in self._used:
            moments = ["UTC", *moments]
        if moments:
            lines.append(f"from datetime import {', '.join(moments)}\n")
        lines += [f"from {module} import {name}\n" for type_, module, name in _OTHERS if type_ in self._used]
        return "".join(lines) + "\n" if lines else ""

    def text(self, *, indent: int, before: int) -> str:
        """Return the literal, whose first line begins after `before` characters and the others after `indent`."""
        return _lines(self._value, indent, before)


_OTHERS: Final = ((Decimal, "decimal", "Decimal"), (UUID, "uuid", "UUID"))


def literal(value: Any) -> str:
    """Return the source code of a value in one line, with double quotes. Raises TypeError if it has none."""
    match value:
        case float() if not isfinite(value):
            return f'float("{value}")'
        case None | bool() | int() | float():
            return repr(value)
        case str() | bytes():
            return string(value)
        case list():
            return f"[{', '.join(map(literal, value))}]"
        case tuple():
            return f"({literal(value[0])},)" if len(value) == 1 else f"({', '.join(map(literal, value))})"
        case dict():
            return f"{{{', '.join(f'{literal(name)}: {literal(each)}' for name, each in value.items())}}}"
        case datetime():
            return _datetime(value)
        case date():
            return f"date({value.year}, {value.month}, {value.day})"
        case time() if value.tzinfo is None:
            return repr(value).removeprefix("datetime.")
        case timedelta():
            return repr(value).removeprefix("datetime.")
        case Decimal() | UUID():
            return f"{type(value).__name__}({string(str(value))})"
    raise TypeError(f"{type(value).__name__} has no literal")


def string(text: str | bytes) -> str:
    """Return a literal of text or bytes in the quotes that need fewer escapes, which are double ones if they tie."""
    written = repr(text)
    prefix, body, quote = (
        ("b", written[2:-1], written[1]) if isinstance(text, bytes) else ("", written[1:-1], written[0])
    )
    if quote == '"':
        return written
    single, double = body.count("\\'"), body.count('"')
    if double <= single:
        return prefix + '"' + body.replace("\\'", "'").replace('"', '\\"') + '"'
    return written


def record_code(
    value: bytes | None,
    key: bytes | None,
    headers: Sequence[tuple[str, bytes]] = (),
    *,
    with_key: bool,
    may_wrap: bool,
) -> str:
    """Return the source code of a record, as an item of a list: its value, the key if the pipeline reads it, and the
    headers if there are any.

    With `may_wrap`, the value is one JSON document, in which line breaks may follow commas.
    """
    shown = _readable(value)
    if not with_key and not headers:
        return _document(shown, may_wrap) or _in_parentheses(shown, 4)
    named = [f"key={literal(_readable(key))}"] if with_key else []
    if headers:  # in a line for each part, because a GUID is long
        pairs = "".join(
            f"    (\n        {literal(name)},\n        {literal(each)},\n    ),\n" for name, each in headers
        )
        named.append(f"headers=[\n{pairs}]")
    line = f"Record({', '.join([literal(shown), *named])})"
    if not headers and len(line) + 5 <= WIDTH:
        return line
    part = _document(shown, may_wrap) or _long(shown, 8)
    return f"Record(\n{_indented(part)},\n" + "".join(f"{_indented(each)},\n" for each in named) + ")"


def _document(value: str | bytes | None, may_wrap: bool) -> str | None:
    """Return JSON that is too long for a line as a text of several lines; None for anything else."""
    if not may_wrap or not isinstance(value, str) or len(literal(value)) <= _LONGEST - 12:
        return None
    if '"""' in value or not value.isprintable():
        return None
    lines = _wrapped(value)
    prefix = "r" if "\\" in value else ""
    return None if max(map(len, lines)) > _LONGEST - 8 else f'{prefix}"""\n' + "\n".join(lines) + '\n"""'


def _in_parentheses(value: Any, indent: int) -> str:
    """Return a literal that stands after `indent` characters: of a long text, parts in parentheses."""
    parts = _long(value, indent)
    return f"(\n{_indented(parts)}\n)" if "\n" in parts else parts


def _long(value: Any, indent: int) -> str:
    """Return a literal: a text that does not fit into a line after `indent` characters has a part in each."""
    line = literal(value)
    if indent + len(line) + 1 <= _LONGEST or not isinstance(value, str | bytes):
        return line
    size = _CHUNK if isinstance(value, str) else _CHUNK // 4  # a byte may need four characters
    return "\n".join(string(value[start : start + size]) for start in range(0, len(value), size))


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.split("\n"))


def _wrapped(text: str) -> list[str]:
    """Cut a JSON object into lines after its own commas: not in a text, and not in a member, which may be kept as it is
    written."""
    lines, line, depth, in_text, escaped = [], "", 0, False, False
    for character in text:
        if not line and character == " ":
            continue
        line += character
        if escaped:
            escaped = False
        elif in_text:
            escaped, in_text = character == "\\", character != '"'
        elif character == '"':
            in_text = True
        elif character in "[]{}":
            depth += 1 if character in "[{" else -1
        elif character == "," and depth == 1 and len(line) > _LINE:
            lines.append(line)
            line = ""
    return [*lines, line] if line else lines


def _readable(value: bytes | None) -> str | bytes | None:
    """Return text where bytes are UTF-8."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value


def _datetime(value: datetime) -> str:
    numbers = [value.year, value.month, value.day, value.hour, value.minute]
    if value.second or value.microsecond:
        numbers.append(value.second)
    if value.microsecond:
        numbers.append(value.microsecond)
    zone = ""
    if value.tzinfo is not None:
        if value.utcoffset() != timedelta(0):
            value = value.astimezone(UTC)
            return _datetime(value)
        zone = ", tzinfo=UTC"
    return f"datetime({', '.join(map(str, numbers))}{zone})"


def _lines(value: Any, indent: int, before: int) -> str:
    """Return a literal whose first line begins after `before` characters, and the others after `indent`."""
    line = literal(value)
    if before + len(line) + 1 <= WIDTH or not value:
        return line
    if not isinstance(value, dict | list | tuple):
        return _in_parentheses(value, before).replace("\n", "\n" + " " * indent)
    deeper = " " * (indent + 4)
    if isinstance(value, list | tuple):
        first, last = "[]" if isinstance(value, list) else "()"
        parts = [_lines(each, indent + 4, indent + 4) for each in value]
        return f"{first}\n" + "".join(f"{deeper}{part},\n" for part in parts) + " " * indent + last
    parts = [
        f"{literal(name)}: {_lines(each, indent + 4, indent + 6 + len(literal(name)))}"
        for name, each in value.items()
    ]
    return "{\n" + "".join(f"{deeper}{part},\n" for part in parts) + " " * indent + "}"


def _note_types(value: Any, used: set[type]) -> None:
    if isinstance(value, dict):
        for each in (*value.keys(), *value.values()):
            _note_types(each, used)
    elif isinstance(value, list | tuple):
        for each in value:
            _note_types(each, used)
    else:
        used.add(type(value))
        if isinstance(value, datetime) and value.tzinfo is not None:
            used.add(timezone)
