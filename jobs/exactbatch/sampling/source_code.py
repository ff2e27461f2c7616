"""Write the source code of a proposed pipeline: its module, its DAG and its test, formatted as ruff formats it.

A line has at most 88 characters, ruff's default, unless a literal is longer. What does not fit gets a trailing comma,
so that formatters with a longer line leave it as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from textwrap import indent
from typing import Any, Final

from exactbatch.columns import Column
from exactbatch.errors.printable import printable
from exactbatch.formats import Json, WithMessage
from exactbatch.pipeline import Pipeline
from exactbatch.sampling.literals import WIDTH, Literal, literal, record_code, string

_INDENT: Final = "    "
_NEWLINE: Final = {True: "\n", False: ""}


def pipeline_module(pipeline: Pipeline, description: str) -> str:
    """Return the module that defines a pipeline under its name."""
    parts = (pipeline.value, pipeline.sink, *([pipeline.message_key] if pipeline.message_key else []))
    names = sorted({"Pipeline", *(name for part in parts for name in _class_names(part))})
    options = [
        f"name={string(pipeline.name)},",
        f"topics={Literal(pipeline.topic_names).text(indent=0, before=len('    topics='))},",
    ]
    for option in ("value", "message_key", "sink"):
        if (part := getattr(pipeline, option)) is not None:
            options.append(_option(option, part))
    body = indent("\n".join(options), _INDENT)
    return (
        f'"""{_inside(printable(description))}"""\n\n'
        f"{_import('exactbatch', names)}\n\n{pipeline.name} = Pipeline(\n{body}\n)\n"
    )


def dag_file(pipeline: Pipeline, schedule: str, *, separate: bool) -> str:
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


def pipeline_test(
    pipeline: Pipeline,
    records: Sequence[tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes]]]],
    rows: Sequence[Mapping[str, Any]],
    *,
    separate: bool,
) -> str:
    """Return a test that decodes records, each a value, a key and headers, and expects these rows. `separate` is as
    dag_file() takes it."""
    name = pipeline.name
    with_key = pipeline.message_key is not None or isinstance(pipeline.value, WithMessage)
    plain = pipeline.value.value if isinstance(pipeline.value, WithMessage) else pipeline.value
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
