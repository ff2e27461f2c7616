"""Write structs of Debezium as Postgres prints them: its geometric types, PostGIS's and hstore."""

import base64
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from exactbatch.columns import own_name

_HAS_SRID: Final = 0x20000000  # in the type of EWKB


def text_for(type_: str, schema_name: str, kind: str) -> Callable[[Any], str] | None:
    """Return how a parsed value becomes text for a type of your own, such as "public.geometry"; None if it cannot.

    `schema_name` and `kind` are the schema's name and type of Connect.
    """
    name = own_name(type_)
    if name in ("geometry", "geography") and schema_name.startswith("io.debezium.data.geometry."):
        return _ewkb
    if is_hstore(type_) and kind == "map":
        return _hstore
    return _GEOMETRIC.get((name or "", schema_name))


def convert_texts(json_texts: pa.StringArray, write: Callable[[Any], str]) -> pa.StringArray:
    """Return JSON texts as `write`, of text_for(), writes their values; null for null."""
    written = [None if text is None else _written(json.loads(text), write) for text in json_texts.to_pylist()]
    return pa.array(written, pa.string())


def _written(value: Any, write: Callable[[Any], str]) -> str:
    try:
        return write(value)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"not a value of its schema: {type(error).__name__}: {error}") from None


def _ewkb(value: Mapping[str, Any]) -> str:
    """Return PostGIS's hexadecimal form of a geometry in WKB, with its SRID if it has one."""
    wkb, srid = base64.b64decode(value["wkb"], validate=True), value.get("srid")
    if srid is None:
        return wkb.hex().upper()
    order = "<" if wkb[0] else ">"
    (kind,) = struct.unpack_from(f"{order}I", wkb, 1)
    if kind & _HAS_SRID:
        return wkb.hex().upper()
    return (wkb[:1] + struct.pack(f"{order}II", kind | _HAS_SRID, srid) + wkb[5:]).hex().upper()


def _number(value: Any) -> str:
    return repr(float(value)).removesuffix(".0")


def _point(value: Mapping[str, Any]) -> str:
    return f"({_number(value['x'])},{_number(value['y'])})"


def _circle(value: Mapping[str, Any]) -> str:
    return f"<{_point(value['center'])},{_number(value['radius'])}>"


def _line(value: Mapping[str, Any]) -> str:
    return f"{{{','.join(_number(value[name]) for name in ('a', 'b', 'c'))}}}"


def _hstore(value: Mapping[str, Any]) -> str:
    # In hstore's order: shorter keys first.
    members = sorted(value.items(), key=lambda member: (len(member[0].encode()), member[0].encode()))
    return ", ".join(f"{_quoted(key)}=>{'NULL' if each is None else _quoted(each)}" for key, each in members)


def is_hstore(type_: str) -> bool:
    """True for hstore, in whatever schema the extension is, such as "public.hstore"."""
    return own_name(type_) == "hstore"


def hstore_of_json(texts: pa.StringArray) -> pa.StringArray:
    """Return hstore's text for JSON objects of strings and nulls, as hstore.handling.mode=json writes them; text that
    is no object stays as it is, for Postgres to read. Raises ValueError for another object."""
    return pa.array(
        [None if text is None else _write_hstore(text) for text in texts.to_pylist()], pa.string()
    )


def _write_hstore(text: str) -> str:
    if not text.lstrip().startswith("{"):
        return text
    try:
        members = json.loads(text, object_pairs_hook=tuple)
    except ValueError as error:
        raise ValueError(f"expected hstore's text, or a JSON object: {error}") from None
    for key, value in members:
        if value is not None and not isinstance(value, str):
            raise ValueError(
                f"the value of the key {key!r} is neither text nor null, which is all that hstore holds: declare the "
                f"column as jsonb"
            )
    if len(by_key := dict(members)) < len(members):
        raise ValueError("a key occurs twice in the object")
    return _hstore(by_key)


def _quoted(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError("expected text")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


_GEOMETRIC: Final[Mapping[tuple[str, str], Callable[[Any], str]]] = {
    ("point", "io.debezium.data.geometry.Point"): _point,
    ("circle", "io.debezium.data.geometry.Circle"): _circle,
    ("line", "io.debezium.data.geometry.Line"): _line,
}
