"""The URL of a Spark Connect server, `sc://host:port/;token=…`, and what of it may be shown."""

import re
from typing import Final

_ADDRESS: Final = re.compile(r"(?:[a-z]+://)?[^/;?#]*")


def is_connect(master: str) -> bool:
    """Return True if a master is the URL of a Spark Connect server."""
    return master.startswith("sc://")


def find_address(url: str) -> str:
    """Return the part of a URL before its path and its token."""
    return str(_ADDRESS.findall(url)[0])
