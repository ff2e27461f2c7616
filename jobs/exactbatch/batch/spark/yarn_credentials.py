"""Secrets of a driver that runs in a container of YARN: they are in the credentials of its application.

spark-submit adds what is in a file of credentials to those that it has, and hands them to YARN with the application.
YARN gives them to its containers in files that only their account and its own can reach, as it does with Hadoop's own
tokens. So no argument, property, log or file in the staging directory has the secrets.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from exactbatch.settings import Settings

ALIAS: Final = "exactbatch"  # the name of the secret among the credentials
_VARIABLE: Final = "HADOOP_TOKEN_FILE_LOCATION"


@contextmanager
def credentials_file(settings: Settings) -> Iterator[dict[str, str]]:
    """Write a file of credentials that only this account can read; return the variables that name it to spark-submit.

    It is gone after the block.
    """
    with tempfile.NamedTemporaryFile(prefix="exactbatch-") as file:
        file.write(_credentials(json.dumps(settings.as_environment()).encode()))
        file.flush()
        files = filter(None, (os.environ.get(_VARIABLE), file.name))
        yield {_VARIABLE: ",".join(files)}


def _credentials(secret: bytes) -> bytes:
    """Return the secret in the first format of Hadoop's Credentials: no token, and one secret by its name."""
    alias = ALIAS.encode()
    return b"".join((b"HDTS\0", _vint(0), _vint(1), _vint(len(alias)), alias, _vint(len(secret)), secret))


def _vint(number: int) -> bytes:
    """Return a number that is not negative as Hadoop's WritableUtils writes it."""
    if number < 128:
        return bytes([number])
    digits = number.to_bytes((number.bit_length() + 7) // 8)
    return bytes([0x90 - len(digits)]) + digits
