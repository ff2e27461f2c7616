"""The files of a deployment: what executors get, the manifests of Kubernetes, and docs/deploy.md."""

import ast
import json
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from support.environment import DOCS, JOBS, ROOT

PAGE: Final = (DOCS / "deploy.md").read_text()
# What executors import of exactbatch.
OF_EXECUTORS: Final = (
    *("batch", "formats", "kafka", "ledger", "postgres", "sinks", "tokens", "transforms", "errors"),
    *("pipeline.py", "columns.py", "offsets.py", "model.py", "options.py", "settings.py", "topic_pattern.py"),
)
# Spark's machines have PySpark; numba comes with the extra `fast`; a Spark Connect server needs grpc; the packages of
# clouds are installed by those who use these.
CLOUDS: Final = {"boto3", "botocore", "aws_msk_iam_sasl_signer", "azure", "google"}
ELSEWHERE: Final = {"pyspark", "py4j", "numba", "llvmlite", "grpc", "exactbatch", *CLOUDS}
MANIFESTS: Final = sorted((DOCS / "deploy" / "kubernetes").glob("*.yaml"))
OBJECTS: Final[list[tuple[str, dict[str, Any]]]] = [
    (file.name, each) for file in MANIFESTS for each in yaml.safe_load_all(file.read_text())
]
VERSIONS: Final = ("1.29.0", "1.37.0")


def modules() -> list[Path]:
    found: list[Path] = []
    for name in OF_EXECUTORS:
        path = JOBS / "exactbatch" / name
        found += [path] if path.is_file() else path.rglob("*.py")
    return found


def imported() -> set[str]:
    """The packages that modules of executors import, at any place."""
    names: set[str] = set()
    for module in modules():
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.split(".")[0])
    return names - {*sys.stdlib_module_names} - ELSEWHERE


def test_executors_get_the_packages_that_they_import():
    listed = set(re.findall(r"^([a-z0-9-]+)", (ROOT / "requirements-executor.in").read_text(), re.MULTILINE))
    distributions = packages_distributions()
    lacking = {
        name: distributions.get(name) for name in imported() if not listed & {*distributions.get(name, ())}
    }
    assert lacking == {}


def test_executors_get_the_versions_of_all_others():
    def pins(file: str) -> set[str]:
        return set(re.findall(r"^([a-z0-9-]+==\S+)", (ROOT / file).read_text(), re.MULTILINE))

    assert pins("requirements-executor.txt") <= pins("requirements.txt")
    assert len(pins("requirements-executor.txt")) > 20


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("file", "each"), OBJECTS, ids=lambda part: part if isinstance(part, str) else part["kind"]
)
def test_a_manifest_is_valid(file, each, version):
    kubernetes_validate.validate(each, version, strict=True)


def test_the_template_of_executors_is_a_valid_pod():
    template = yaml.safe_load(spark_files()["executor.yaml"])
    template["metadata"].setdefault("name", "executor")
    template["spec"]["containers"][0].setdefault("image", "executor:1")
    kubernetes_validate.validate(template, VERSIONS[-1], strict=True)


def test_an_invalid_manifest_is_not():
    broken = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"prots": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[0], strict=True)


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [each for _, each in OBJECTS if each["kind"] == kind]


def spark_files() -> dict[str, str]:
    [files] = [
        each["data"] for each in of_kind("ConfigMap") if each["metadata"]["name"] == "exactbatch-spark"
    ]
    return files


def pods() -> list[dict[str, Any]]:
    """The pods of the manifests: executors, and those of deployments."""
    deployed = [each["spec"]["template"] for each in of_kind("Deployment")]
    return [*deployed, yaml.safe_load(spark_files()["executor.yaml"])]


def test_there_are_manifests():
    assert [file.name for file in MANIFESTS] == ["connect.yaml", "connections.yaml", "spark.yaml"]
    assert {each["kind"] for _, each in OBJECTS} >= {
        "Secret",
        "ConfigMap",
        "Service",
        "NetworkPolicy",
        "Role",
    }


def test_the_namespace_is_that_of_the_user():
    assert [each for _, each in OBJECTS if "namespace" in each["metadata"]] == []
    assert "namespace: " not in "".join(file.read_text() for file in MANIFESTS)


def test_pods_run_without_privileges_and_within_limits():
    assert len(pods()) == 2
    for pod in pods():
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert {"cpu", "ephemeral-storage"} <= container["resources"]["limits"].keys()


def test_a_deployment_has_probes_memory_limits_and_a_pinned_image():
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    for deployment in of_kind("Deployment"):
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
            assert "memory" in container["resources"]["limits"]
            assert container["image"] == f"exactbatch:{version}" or re.search(
                r":\d+\.\d+\.\d", container["image"]
            )
    assert f"exactbatch-executor:{version}\n" in spark_files()["spark-defaults.conf"]
    executors, airflow = (DOCS / f"deploy/kubernetes/{name}" for name in ("Dockerfile", "Dockerfile.airflow"))
    for dockerfile in (executors.read_text(), airflow.read_text()):
        assert f"exactbatch-{version}-py3-none-any.whl" in dockerfile
    requirements = (ROOT / "requirements.txt").read_text()
    for package, file in (("pyspark", executors), ("apache-airflow", airflow)):
        assert re.search(rf"^{package}==(\S+)", requirements, re.MULTILINE)[1] in file.read_text()


def test_spark_connect_asks_for_a_token_and_is_reached_by_tls_only():
    [pod] = [each["spec"]["template"]["spec"] for each in of_kind("Deployment")]
    server, tls = pod["containers"]
    assert "--host" not in server["args"]  # it listens on its loopback
    assert "ports" not in server
    assert {"secretRef": {"name": "exactbatch-connect-token"}} in server["envFrom"]
    secrets = {each["metadata"]["name"]: each["stringData"] for each in of_kind("Secret")}
    client = json.loads(secrets["exactbatch-connections"]["AIRFLOW_CONN_SPARK_CONNECT_DEFAULT"])
    token = secrets["exactbatch-connect-token"]["SPARK_CONNECT_AUTHENTICATE_TOKEN"]
    assert (client["password"], client["extra"]) == (token, {"use_ssl": True})
    assert tls["ports"][0]["containerPort"] == client["port"]
    [listening] = [
        each["data"]["default.conf"] for each in of_kind("ConfigMap") if "default.conf" in each["data"]
    ]
    assert f"listen {client['port']} ssl;" in listening


def test_selectors_find_the_pods():
    labels = [{**pod["metadata"]["labels"]} for pod in pods()]
    drivers = {"exactbatch/role": "driver"}  # which the page tells the user to set
    assert "exactbatch/role: driver" in PAGE
    selectors = [each["spec"]["selector"] for each in of_kind("Service")]
    for policy in of_kind("NetworkPolicy"):
        peers = [peer for rule in policy["spec"]["ingress"] for peer in rule["from"]]
        selectors += [
            policy["spec"]["podSelector"]["matchLabels"],
            *(peer["podSelector"]["matchLabels"] for peer in peers),
        ]
    for selector in selectors:
        assert any(selector.items() <= each.items() for each in [*labels, drivers]), selector


def test_the_policies_allow_the_ports_of_spark():
    properties = dict(re.findall(r"^(spark\S+)\s+(.+)$", spark_files()["spark-defaults.conf"], re.MULTILINE))
    retries = int(properties["spark.port.maxRetries"])
    allowed = {
        (policy["metadata"]["name"], port["port"], port.get("endPort"))
        for policy in of_kind("NetworkPolicy")
        for rule in policy["spec"]["ingress"]
        for port in rule["ports"]
    }
    for name, policy in {
        "spark.driver.port": "exactbatch-driver",
        "spark.driver.blockManager.port": "exactbatch-driver",
        "spark.blockManager.port": "exactbatch-executor",
    }.items():
        first = int(properties[name])
        assert (policy, first, first + retries) in allowed


def test_the_page_names_the_accounts_and_maps_that_there_are():
    names = {each["metadata"]["name"] for _, each in OBJECTS}
    for name in ("exactbatch-driver", "exactbatch-spark", "exactbatch-connections", "exactbatch-connect"):
        assert name in names
        assert name in PAGE
