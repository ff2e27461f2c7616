"""Write the source code of a proposed pipeline: its module, its DAG and its test, formatted as ruff formats it.

A line has at most 88 characters, ruff's default, unless a literal is longer. What does not fit gets a trailing comma,
so that formatters with a longer line leave it as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from math import isfinite
from textwrap import indent
from typing import Any, Final
from uuid import UUID

from exactbatch.columns import Column
from exactbatch.errors.printable import printable
from exactbatch.formats import Json, WithKeyAndHeaders
from exactbatch.pipeline import Pipeline

WIDTH: Final = 88  # characters of a line
_LONGEST: Final = 110  # of a line that linters usually accept
_CHUNK: Final = 70  # characters of a part of a text that is longer
_LINE: Final = 60  # after which a record goes on in the next line
_INDENT: Final = "    "
_NEWLINE: Final = {True: "\n", False: ""}


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


def write_pipeline_module(pipeline: Pipeline, description: str) -> str:
    """Return the module that defines a pipeline under its name."""
    parts = (pipeline.value, pipeline.sink, *([pipeline.message_key] if pipeline.message_key else []))
    names = sorted({"Pipeline", *(name for part in parts for name in _class_names(part))})
    topics: object = pipeline.topic_names
    if isinstance(topics, tuple) and len(topics) == 1:
        topics = topics[0]
    options = [
        f"name={string(pipeline.name)},",
        f"topics={Literal(topics).text(indent=0, before=len('    topics='))},",
    ]
    for option in ("value", "message_key", "sink"):
        if (part := getattr(pipeline, option)) is not None:
            options.append(_option(option, part))
    body = indent("\n".join(options), _INDENT)
    return (
        f'"""{_inside(printable(description))}"""\n\n'
        f"{_import('exactbatch', names)}\n\n{pipeline.name} = Pipeline(\n{body}\n)\n"
    )


def write_dag_file(pipeline: Pipeline, schedule: str, *, separate: bool) -> str:
    """Return the file of a pipeline's DAG.

    With `separate`, an empty line is between the imports of exactbatch and of the project, as linters expect it where
    they find the package `pipelines` next to the DAGs.
    """
    name = pipeline.name
    return (
        f'"""Kafka topic `{pipeline.topics_text}` → Postgres table `{_inside(pipeline.traits.target)}`."""\n\n'
        f"from exactbatch.airflow import pipeline_dag\n{_NEWLINE[separate]}"
        f"from pipelines.{name} import {name}\n\n"
        f"dag = pipeline_dag({name}, schedule={string(schedule)})\n"
    )


def write_pipeline_test(
    pipeline: Pipeline,
    records: Sequence[tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes]]]],
    rows: Sequence[Mapping[str, Any]],
    *,
    separate: bool,
) -> str:
    """Return a test that decodes records, each a value, a key and headers, and expects these rows. `separate` is as
    write_dag_file() takes it."""
    name = pipeline.name
    with_key = pipeline.message_key is not None or isinstance(pipeline.value, WithKeyAndHeaders)
    plain = pipeline.value.value if isinstance(pipeline.value, WithKeyAndHeaders) else pipeline.value
    may_wrap = isinstance(plain, Json) and plain.documents == "one" and not plain.encodings
    codes = [
        record_code(value, key, headers, with_key=with_key, may_wrap=may_wrap)
        for value, key, headers in records
    ]
    listed = "".join(f"{indent(code, _INDENT)},\n" for code in codes)
    imports = ["Record", "decode"] if with_key or any(headers for *_, headers in records) else ["decode"]
    expected = Literal(list(rows))
    registry = getattr(plain, "registry", None)
    asks = (
        ""
        if registry is None
        else f"\n\nThe test asks the schema registry at {_inside(registry)} for their schemas."
    )
    return (
        f'"""Records of the topic `{pipeline.topics_text}` become rows of `{_inside(pipeline.traits.target)}`.\n\n'
        f"RECORDS are copies of real records: replace what must not be in a repository, and add the\n"
        f'cases that you know of.{asks}\n"""\n\n'
        f"{expected.imports}"
        f"{_import('exactbatch.testing', imports)}\n{_NEWLINE[separate]}"
        f"from pipelines.{name} import {name}\n\n"
        f"RECORDS = [\n{listed}]\n\n\n"
        f"def test_records_become_rows():\n"
        f"    decoded = decode({name}, RECORDS)\n"
        f"    assert decoded.rejects == []\n"
        f"    assert decoded.rows == {expected.text(indent=4, before=len('    assert decoded.rows == '))}\n"
    )


def _import(module: str, names: Sequence[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= WIDTH:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"


def _option(name: str, part: object) -> str:
    """Return `name=Class(…),`, in one line if it fits into one."""
    return f"{name}={_call(part, before=len(name) + len(_INDENT) + 1)},"


def _call(part: object, *, before: int) -> str:
    """Return the expression that makes a format or sink; `before` counts the characters before it in its line."""
    arguments = list(_arguments(part))
    name = type(part).__name__
    line = f"{name}({', '.join(arguments)})"
    if "\n" not in line and before + len(line) + 1 <= WIDTH:
        return line
    if len(arguments) == 1 and "\n" in arguments[0]:
        return f"{name}(\n{indent(arguments[0], _INDENT)}\n)"  # as ruff leaves a text of several lines
    listed = "".join(f"{indent(argument, _INDENT)},\n" for argument in arguments)
    return f"{name}(\n{listed})"


def _arguments(part: object) -> list[str]:
    """Return the arguments of a dataclass that differ from their defaults."""
    assert is_dataclass(part)
    found = []
    for field in fields(part):
        value = getattr(part, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if not field.init or not field.repr or value == default:
            continue
        if is_dataclass(value) and not isinstance(value, type) and not isinstance(value, Column):
            text = _call(value, before=len(field.name) + 2 * len(_INDENT) + 1)
        elif field.name in ("schema", "fields"):
            text = _schema(value)
        elif isinstance(value, tuple) and len(value) == 1:
            text = literal(value[0])
        else:
            text = literal(value)
        is_first = field is fields(part)[0] and not field.kw_only
        found.append(text if is_first else f"{field.name}={text}")
    return found


def _schema(text: str) -> str:
    """Return a schema as a literal, with one column in each line if it has several lines."""
    if "\n" not in text:
        return string(text)
    text = text.replace("\\", "\\\\").replace('"""', r"\"\"\"")
    return f'"""\n{text.strip(chr(10)).replace("    ", "", 1).replace(chr(10) + "    ", chr(10))}\n"""'


def _inside(text: str) -> str:
    """Return a text as it is written between three double quotes. A record may have it from anybody: it must not end
    the literal, after which it would be code. Half a surrogate pair, which no file can hold, becomes its escape."""
    escaped = text.replace("\\", "\\\\").replace('"', r"\"")
    return escaped.encode("utf-8", "backslashreplace").decode()


def _class_names(part: object) -> list[str]:
    """Return the names of the classes that an expression of a format or sink needs."""
    assert is_dataclass(part)
    inner = [getattr(part, field.name) for field in fields(part) if field.init and field.repr]
    nested = [value for value in inner if is_dataclass(value) and not isinstance(value, type)]
    return [type(part).__name__, *(name for value in nested for name in _class_names(value))]
