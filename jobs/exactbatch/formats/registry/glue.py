"""Request schemas of AWS Glue's registry."""

from http import HTTPStatus
from typing import Any, Final
from uuid import UUID

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
)
from confluent_kafka.schema_registry import Schema, SchemaReference

from exactbatch.errors import ConfigurationError, RegistryUnavailable

_TIMEOUT: Final = 10  # seconds
_TRIES: Final = 4
_AVAILABLE: Final = "AVAILABLE"
_UNKNOWN: Final = "EntityNotFoundException"


class GlueSchemas:
    """Requests schemas by boto3, for the identity that the machine has at AWS."""

    def __init__(self, region: str) -> None:
        retries: Any = {"total_max_attempts": _TRIES, "mode": "standard"}
        config = Config(connect_timeout=_TIMEOUT, read_timeout=_TIMEOUT, retries=retries)
        self._client = boto3.client("glue", region_name=region, config=config)
        self._region = region

    def find(self, schema_id: UUID, _format: str | None) -> Schema | None:
        """Return a schema; None if Glue has no version with this UUID.

        Raises RegistryUnavailable if AWS does not answer or asks for patience, and ConfigurationError if it refuses.
        """
        what = f"schema version {schema_id} of AWS Glue in {self._region}"
        try:
            answer = self._client.get_schema_version(SchemaVersionId=str(schema_id))
        except ClientError as error:
            code, status = (
                error.response["Error"]["Code"],
                error.response["ResponseMetadata"]["HTTPStatusCode"],
            )
            if code == _UNKNOWN:
                return None
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR or "Throttl" in code:
                raise RegistryUnavailable(f"AWS answered {code} for {what}. Try again.") from error
            raise ConfigurationError(
                f"AWS answered {code} for {what}: {error.response['Error'].get('Message', '')}. Allow "
                f"glue:GetSchemaVersion to the identity of the driver and the executors."
            ) from error
        except (ConnectionError, HTTPClientError, CredentialRetrievalError) as error:
            raise RegistryUnavailable(
                f"AWS cannot be reached for {what}: {type(error).__name__}: {error}. Check that this machine reaches "
                f"the endpoint of Glue."
            ) from error
        except BotoCoreError as error:
            raise ConfigurationError(
                f"AWS cannot be asked for {what}: {error}. Give the driver and the executors an identity at AWS."
            ) from error
        if answer.get("Status") != _AVAILABLE:
            return None
        return Schema(answer["SchemaDefinition"], answer["DataFormat"])

    def find_reference(self, reference: SchemaReference, _format: str | None) -> Schema:
        """Raise ValueError: Glue's schemas have no references."""
        raise ValueError(f"AWS Glue's schemas have no references, found {reference.name}")
