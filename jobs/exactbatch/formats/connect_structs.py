"""Write structs of Debezium as text that Postgres parses: its geometric types, PostGIS's, hstore and vectors."""

import base64
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

_HAS_SRID: Final = 0x20000000  # in the type of EWKB


def text_for(type_: str, schema_name: str, kind: str) -> Callable[[Any], str] | None:
    """Return how a parsed value becomes text for a type of your own, such as "public.geometry"; None if it cannot.

    `schema_name` and `kind` are the schema's name and type of Connect.
    """
    name = type_.rpartition(".")[2].strip('"')
    if name in ("geometry", "geography") and schema_name.startswith("io.debezium.data.geometry."):
        return _ewkb
    if kind == "array":
        return json.dumps if name in ("vector", "halfvec") else None
    if name == "hstore" and kind == "map":
        return _hstore
    return _GEOMETRIC.get((name, schema_name))


def _ewkb(value: Mapping[str, Any]) -> str:
    """Return PostGIS's hexadecimal form of a geometry in WKB, with its SRID if it has one."""
    wkb, srid = base64.b64decode(value["wkb"], validate=True), value.get("srid")
    if srid is None:
        return wkb.hex()
    order = "<" if wkb[0] else ">"
    (kind,) = struct.unpack_from(f"{order}I", wkb, 1)
    if kind & _HAS_SRID:
        return wkb.hex()
    return (wkb[:1] + struct.pack(f"{order}II", kind | _HAS_SRID, srid) + wkb[5:]).hex()


def _point(value: Mapping[str, Any]) -> str:
    return f"({float(value['x'])!r},{float(value['y'])!r})"


def _circle(value: Mapping[str, Any]) -> str:
    return f"<{_point(value['center'])},{float(value['radius'])!r}>"


def _line(value: Mapping[str, Any]) -> str:
    return f"{{{','.join(repr(float(value[name])) for name in ('a', 'b', 'c'))}}}"


def _hstore(value: Mapping[str, Any]) -> str:
    return ",".join(
        f"{_quoted(key)}=>{'NULL' if each is None else _quoted(each)}" for key, each in value.items()
    )


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
