"""Tokens of AWS, made with AWS's own packages, which need other versions of packages than the rest of the tests."""

import base64
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest

HOST: Final = "shop.abc.eu-west-1.rds.amazonaws.com"
SERVERS: Final = "b-1.shop.abc.kafka.eu-central-1.amazonaws.com:9098"
_PROGRAM: Final = f"""
import json
import boto3
from exactbatch.tokens.providers import get_token
rds = get_token("aws_rds_iam", {{"host": "{HOST}", "port": "5433", "user": "job"}})
msk = get_token("aws_msk_iam", {{"bootstrap.servers": "{SERVERS}"}})
own = boto3.client("rds", region_name="eu-west-1").generate_db_auth_token("{HOST}", 5433, "job")
print(json.dumps([rds.value, rds.expires_at, msk.value, msk.expires_at, own]))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The token for RDS and when it expires, that for MSK and when it expires, and boto3's own for RDS."""
    packages = tmp_path_factory.mktemp("aws")
    uv = Path(sys.executable).parent / "uv"
    install = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", packages]
    subprocess.run([*install, "aws-msk-iam-sasl-signer-python", "boto3"], check=True, timeout=300)
    identity = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret"}
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, **identity, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    answer: list[Any] = json.loads(ran.stdout)
    return answer


@pytest.mark.slow
def test_a_token_for_rds_is_what_awss_own_library_signs(made: list[Any]) -> None:
    value, expires_at, _, _, own = made
    assert 880 < expires_at - time.time() <= 900
    parts, own_parts = urlsplit(f"https://{value}"), urlsplit(f"https://{own}")
    assert (parts.hostname, parts.port) == (HOST, 5433)
    query, own_query = parse_qs(parts.query), parse_qs(own_parts.query)
    assert query.keys() == own_query.keys()
    assert query["DBUser"] == ["job"]
    assert query["X-Amz-Credential"][0].endswith("/eu-west-1/rds-db/aws4_request")
    if query["X-Amz-Date"] == own_query["X-Amz-Date"]:
        assert query["X-Amz-Signature"] == own_query["X-Amz-Signature"]


@pytest.mark.slow
def test_a_token_for_msk_is_what_awss_own_signer_makes(made: list[Any]) -> None:
    _, _, value, expires_at, _ = made
    assert 800 < expires_at - time.time() <= 900
    url = urlsplit(base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).decode())
    assert url.hostname == "kafka.eu-central-1.amazonaws.com"
    query = parse_qs(url.query)
    assert query["Action"] == ["kafka-cluster:Connect"]
    assert query["X-Amz-Credential"][0].endswith("/eu-central-1/kafka-cluster/aws4_request")
