"""Tokens of AWS, Azure and Google for the identity that the machine has there.

Each cloud's own library finds the identity and signs the request. Users install those that they need, so that they are
imported where they are used.
"""

import base64
import json
import os
import re
import time
from collections.abc import Mapping
from datetime import UTC
from functools import wraps
from typing import Any, Final

from exactbatch.errors import ConfigurationError
from exactbatch.tokens.token import Provider, Token

# "Authentication tokens have a lifespan of 15 minutes", Amazon RDS User Guide, IAM database authentication.
_RDS_LIFETIME: Final = 900.0  # seconds
# Hosts of MSK, and of RDS and Aurora, have their region in their name.
_REGION: Final = re.compile(r"\.([a-z]{2}(?:-[a-z]+)+-\d)\.(?:rds\.)?amazonaws\.com")
_AZURE_POSTGRES: Final = "https://ossrdbms-aad.database.windows.net/.default"
_GOOGLE_POSTGRES: Final = "https://www.googleapis.com/auth/sqlservice.login"
_GOOGLE_KAFKA: Final = "https://www.googleapis.com/auth/cloud-platform"


def _names_package(provider: Provider) -> Provider:
    """Raise ConfigurationError where the library of a provider is not installed."""

    @wraps(provider)
    def request(connection: Mapping[str, Any]) -> Token:
        try:
            return provider(connection)
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"the connection's tokens need the Python package of {error.name}, which is not installed here. "
                f"`exactbatch explain tokens` names it: install it on the driver and on every executor."
            ) from error

    return request


@_names_package
def request_msk_token(connection: Mapping[str, Any]) -> Token:
    """Request a token for Amazon MSK with IAM: a signed URL, as AWS's own signer makes it."""
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # installed by its users

    value, expires_ms = MSKAuthTokenProvider.generate_auth_token(_region(_kafka_host(connection)))
    return Token(value, expires_ms / 1000)


@_names_package
def request_rds_token(connection: Mapping[str, Any]) -> Token:
    """Request a password for the login of a connection to RDS or Aurora with IAM."""
    import boto3  # installed by its users

    host, user = str(connection.get("host", "")), connection.get("user")
    if not host or not user:
        raise ConfigurationError(
            "the connection to Postgres has no host or no user, for which a password of IAM is signed. Set both."
        )
    client = boto3.client("rds", region_name=_region(host))
    value = client.generate_db_auth_token(
        DBHostname=host, Port=int(connection.get("port") or 5432), DBUsername=user
    )
    return Token(value, time.time() + _RDS_LIFETIME)


@_names_package
def request_azure_token(connection: Mapping[str, Any]) -> Token:
    """Request a token of Entra ID: for Event Hubs if the connection is to Kafka, else for Azure's Postgres."""
    from azure.identity import DefaultAzureCredential  # installed by its users

    is_kafka = "bootstrap.servers" in connection
    scope = f"https://{_kafka_host(connection)}/.default" if is_kafka else _AZURE_POSTGRES
    found = DefaultAzureCredential().get_token(scope)
    return Token(found.token, found.expires_on)


@_names_package
def request_google_token(connection: Mapping[str, Any]) -> Token:
    """Request a token of a service account: for Managed Kafka and its registry, or else for Cloud SQL."""
    import google.auth  # both installed by their users
    import google.auth.transport.requests  # as above

    is_kafka = "bootstrap.servers" in connection
    is_postgres = not is_kafka and "schema.registry.url" not in connection
    credentials: Any  # its attributes have a value after refresh()
    credentials, _ = google.auth.default(scopes=[_GOOGLE_POSTGRES if is_postgres else _GOOGLE_KAFKA])
    credentials.refresh(google.auth.transport.requests.Request())
    expires_at = credentials.expiry.replace(tzinfo=UTC).timestamp()
    if not is_kafka:
        return Token(credentials.token, expires_at)
    account = getattr(credentials, "service_account_email", None)
    return Token(_google_kafka_token(credentials.token, account, expires_at), expires_at)


def _google_kafka_token(access_token: str, account: str | None, expires_at: float) -> str:
    """Return an access token in the form of a JWT that Google's brokers take: three parts in base64 without padding.

    The form is that of Google's own client (googleapis/managedkafka, kafka-auth-local-server).
    """
    header = {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    claims = {"exp": expires_at, "iat": time.time(), "iss": "Google", "scope": "kafka", "sub": account}
    parts = (json.dumps(header), json.dumps(claims), access_token)
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)


def _kafka_host(connection: Mapping[str, Any]) -> str:
    """Return the first host of bootstrap.servers, without its port."""
    first = str(connection.get("bootstrap.servers", "")).split(",")[0].strip()
    return first.rpartition(":")[0] or first


def _region(host: str) -> str:
    """Return the region of a host of AWS: the one in its name, or else the environment's."""
    found = _REGION.search(host)
    region = found[1] if found else os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise ConfigurationError(
            f"the host {host!r} names no region of AWS, and neither does the environment. Set AWS_REGION on the driver "
            f"and on every executor."
        )
    return region
