"""Hadoop reads the file of credentials in which the secrets of a driver travel."""

from pathlib import Path

import pytest

from exactbatch.batch.spark.yarn_credentials import ALIAS, credentials_file
from exactbatch.settings import POSTGRES, Settings


# Of secrets whose length Hadoop writes as one byte, two, three and four.
@pytest.mark.parametrize("size", [0, 60, 300, 70_000])
def test_hadoop_finds_the_secret_in_the_file(spark, size):
    settings = Settings(kafka={"sasl.password": "ü"}, postgres="x" * size)
    hadoop, java = spark._jvm.org.apache.hadoop, spark._jvm.java
    with credentials_file(settings) as variables:
        [file] = variables.values()
        assert Path(file).stat().st_mode & 0o777 == 0o600
        read = hadoop.security.Credentials.readTokenStorageFile(
            java.io.File(file), hadoop.conf.Configuration(False)
        )
    secret = bytes(read.getSecretKey(hadoop.io.Text(ALIAS)))
    assert f'"{POSTGRES}": "{settings.postgres}"'.encode() in secret
    assert read.numberOfTokens() == 0
    assert not Path(file).exists()
