"""Addresses on Spark's history server. Pure."""

from urllib.parse import quote, urlsplit

from exactbatch.errors import ConfigurationError


def is_web_address(address: str) -> bool:
    """True for http:// and https:// with a host; a link with any other scheme may run code in a browser."""
    parts = urlsplit(address)
    return parts.scheme in ("http", "https") and bool(parts.netloc)


def check_history_address(address: str | None) -> None:
    """Raise ConfigurationError unless the address of a history server, if there is one, can be opened in a browser."""
    if address is not None and not is_web_address(address):
        raise ConfigurationError(
            f"expected spark_history as the address of Spark's history server, such as http://history:18080, found "
            f"{address!r}"
        )


def application_url(address: str | None, application_id: str | None) -> str | None:
    """Return the page of an application on the history server; None if either is not known."""
    if not address or not application_id:
        return None
    return f"{address.rstrip('/')}/history/{quote(application_id, safe='')}/"
