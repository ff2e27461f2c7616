"""Names of columns, modules and tables that follow from names of members, commands and topics."""

import keyword
import re
from collections.abc import Collection
from typing import Final

from exactbatch.columns import LINEAGE_NAMES, MAX_NAME_BYTES, POSITION_EPOCH, UNAVAILABLE_COLUMNS
from exactbatch.errors import ConfigurationError

_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]*")
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# Keywords that are not allowed as the name of a column, or of a function or type: `select user` would be the login's
# name. (Postgres's documentation, appendix C.)
_RESERVED: Final = frozenset(
    {
        "all",
        "analyse",
        "analyze",
        "and",
        "any",
        "array",
        "as",
        "asc",
        "asymmetric",
        "authorization",
        "binary",
        "both",
        "case",
        "cast",
        "check",
        "collate",
        "collation",
        "column",
        "concurrently",
        "constraint",
        "create",
        "cross",
        "current_catalog",
        "current_date",
        "current_role",
        "current_schema",
        "current_time",
        "current_timestamp",
        "current_user",
        "default",
        "deferrable",
        "desc",
        "distinct",
        "do",
        "else",
        "end",
        "except",
        "false",
        "fetch",
        "for",
        "foreign",
        "freeze",
        "from",
        "full",
        "grant",
        "group",
        "having",
        "ilike",
        "in",
        "initially",
        "inner",
        "intersect",
        "into",
        "is",
        "isnull",
        "join",
        "lateral",
        "leading",
        "left",
        "like",
        "limit",
        "localtime",
        "localtimestamp",
        "natural",
        "not",
        "notnull",
        "null",
        "offset",
        "on",
        "only",
        "or",
        "order",
        "outer",
        "overlaps",
        "placing",
        "primary",
        "references",
        "returning",
        "right",
        "select",
        "session_user",
        "similar",
        "some",
        "symmetric",
        "system_user",
        "table",
        "tablesample",
        "then",
        "to",
        "trailing",
        "true",
        "union",
        "unique",
        "user",
        "using",
        "variadic",
        "verbose",
        "when",
        "where",
        "window",
        "with",
    }
)
# Columns that tables have in addition to the pipeline's.
OWN: Final = frozenset(
    {*LINEAGE_NAMES, "batch_id", "deleted", UNAVAILABLE_COLUMNS, POSITION_EPOCH}
    | {"tableoid", "ctid", "xmin", "cmin", "xmax", "cmax"}
)
# Names that the files of a pipeline use themselves.
_TAKEN: Final = frozenset(
    {
        *("dag", "pipeline_dag"),
        *("float", "load", "loaded", "record", "records", "test_records_become_rows"),
        *("date", "datetime", "time", "timedelta"),
    }
)


def snake_case(name: str) -> str:
    """Return a name in lower case with underscores between its words: userId becomes user_id."""
    words = _WORDS.sub("_", name).lower()
    return re.sub(r"\W+", "_", words).strip("_")


def split_words(name: str) -> list[str]:
    """Return the words of a name, in lower case: createdAt has created and at."""
    return [word for word in snake_case(name).split("_") if word]


def column_name(name: str, taken: Collection[str]) -> str:
    """Return a name for a column that needs no quotes if it is of ASCII letters, is no reserved word of SQL, is not
    `taken`, and that Postgres can store."""
    plain = snake_case(name) or "column"
    if plain[0].isdigit() or plain in _RESERVED or plain in OWN:
        plain = f"_{plain}" if plain[0].isdigit() else f"{plain}_"
    plain = _cut(plain, MAX_NAME_BYTES)
    free, number = plain, 2
    while free in taken:
        suffix = f"_{number}"
        free, number = _cut(plain, MAX_NAME_BYTES - len(suffix)) + suffix, number + 1
    return free


def quoted_if_needed(name: str) -> str:
    """Return the name of a column as a schema writes it."""
    return name if _PLAIN.fullmatch(name) else f'"{name}"'


def module_name(name: str) -> str:
    """Return the name of the module for a pipeline, which is the pipeline's name, too: my-orders is my_orders.

    Raises ConfigurationError for a name without ASCII letters or digits, and for one of another module.
    """
    found = snake_case(name)
    if not found.isascii() or not found:
        raise ConfigurationError(
            f"expected a name of ASCII letters, digits and underscores, found {name!r}: it names a Python module, a "
            f"pipeline and a table. Choose another name."
        )
    if found[0].isdigit():
        found = f"pipeline_{found}"
    if keyword.iskeyword(found) or keyword.issoftkeyword(found) or found in _TAKEN:
        found += "_"
    if len(found) > _MAX_MODULE:
        raise ConfigurationError(
            f"the name {found!r} is too long: {len(found)} characters, and a table of Postgres with its suffixes can "
            f"have {_MAX_MODULE}. Choose a shorter name."
        )
    return found


# A table of an Upsert has a sibling with the suffix _deleted or _change.
_MAX_MODULE: Final = MAX_NAME_BYTES - len("_deleted")


def _cut(name: str, size: int) -> str:
    """Return the beginning of a name, at most `size` bytes."""
    return name.encode()[:size].decode(errors="ignore")
