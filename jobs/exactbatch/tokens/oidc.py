"""Tokens of an OpenID Connect server for a client's own credentials (RFC 6749, section 4.4).

The properties are those of librdkafka with sasl.oauthbearer.method=oidc.
"""

import base64
import json
import ssl
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import httpx

from exactbatch.errors import ConfigurationError, TokenUnavailable
from exactbatch.tokens.token import LOOPBACK, Token

URL: Final = "sasl.oauthbearer.token.endpoint.url"
CLIENT: Final = "sasl.oauthbearer.client.id"
SECRET: Final = "sasl.oauthbearer.client.secret"
SCOPE: Final = "sasl.oauthbearer.scope"
EXTENSIONS: Final = "sasl.oauthbearer.extensions"
AUTHORITY: Final = "https.ca.location"
_REQUIRED: Final = (URL, CLIENT, SECRET)
_TIMEOUT: Final = 10.0  # seconds
_LARGEST: Final = 65_536  # bytes of an answer


def check_oidc(properties: Mapping[str, Any]) -> None:
    """Raise ConfigurationError unless a token can be requested with these properties, without a secret in the open."""
    if missing := [name for name in _REQUIRED if not properties.get(name)]:
        raise ConfigurationError(
            f"the Kafka property {', '.join(missing)} is missing, which sasl.oauthbearer.method=oidc needs. Set it in "
            f"the Kafka connection (EXACTBATCH_KAFKA, or Airflow's kafka_default)."
        )
    try:
        url = httpx.URL(properties[URL])
    except (httpx.InvalidURL, TypeError):
        url = httpx.URL("")
    if url.scheme != "https" and not (url.scheme == "http" and url.host in LOOPBACK):
        raise ConfigurationError(
            f"the Kafka property {URL} is {properties[URL]!r}, and the client's secret would be sent there. Write an "
            f"address with https."
        )
    _parse_extensions(properties)


def request_oidc_token(properties: Mapping[str, Any]) -> Token:
    """Request a token. Raises ConfigurationError as check_oidc() does, and TokenUnavailable."""
    check_oidc(properties)
    url = properties[URL]
    form = {"grant_type": "client_credentials"}
    if scope := properties.get(SCOPE):
        form["scope"] = scope
    try:
        with (
            httpx.Client(verify=_verification(properties), timeout=_TIMEOUT) as client,
            client.stream("POST", url, data=form, auth=(properties[CLIENT], properties[SECRET])) as answer,
        ):
            body = b""
            for part in answer.iter_bytes():
                body += part
                if len(body) > _LARGEST:
                    raise _no_token(url, f"an answer of more than {_LARGEST} bytes")
    except httpx.HTTPError as error:
        raise TokenUnavailable(
            f"the server of tokens at {url} does not answer: {type(error).__name__}: {error}. Check that it is up and "
            f"can be reached from this machine."
        ) from error
    if answer.status_code != HTTPStatus.OK:
        raise TokenUnavailable(
            f"the server of tokens at {url} answered HTTP status {answer.status_code}{_reason(body)}. Check {CLIENT}, "
            f"{SECRET} and {SCOPE} in the Kafka connection."
        )
    try:
        content = json.loads(body)
        value = content["access_token"]
        expires_at = _expiry(content)
        return Token(value, expires_at, _parse_extensions(properties))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _no_token(url, f"{type(error).__name__}: {error}") from error


def _verification(properties: Mapping[str, Any]) -> Any:
    """Return the authorities to trust: from a file, or else from the system."""
    location = properties.get(AUTHORITY)
    try:
        return ssl.create_default_context(cafile=location)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"the Kafka property {AUTHORITY} is {location!r}, which is no file of certificates: {error}. Correct it."
        ) from error


def _expiry(content: Mapping[str, Any]) -> float:
    """Return when a token expires: `expires_in` (RFC 6749, section 5.1), or else its claim `exp` (RFC 7519)."""
    if (lifetime := content.get("expires_in")) is not None:
        return time.time() + float(lifetime)
    claims = content["access_token"].split(".")[1]
    return float(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"])


def _reason(body: bytes) -> str:
    """Return what an error says of itself (RFC 6749, section 5.2), after a colon; "" if nothing."""
    try:
        content = json.loads(body)
        words = [str(content[name])[:200] for name in ("error", "error_description") if content.get(name)]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ""
    return f" ({': '.join(words)})" if words else ""


def _no_token(url: str, found: str) -> TokenUnavailable:
    return TokenUnavailable(
        f"the server of tokens at {url} did not answer with a token and its lifetime: {found}. Check the address in "
        f"{URL} of the Kafka connection."
    )


def _parse_extensions(properties: Mapping[str, Any]) -> dict[str, str]:
    """Parse `name=value,name=value`."""
    text = str(properties.get(EXTENSIONS, ""))
    pairs = [part.partition("=") for part in text.split(",") if part]
    if not all(name and equals for name, equals, _ in pairs):
        raise ConfigurationError(
            f"the Kafka property {EXTENSIONS} is {text!r}, and must be name=value pairs, separated by commas. Correct "
            f"it."
        )
    return {name: value for name, _, value in pairs}
