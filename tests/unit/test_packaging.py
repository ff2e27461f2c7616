"""The files of a release agree with each other: one version, one list of dependencies, and a license."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from release_check import find_missing

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HEADINGS = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
RELEASED = next(heading for heading in HEADINGS if heading != "Unreleased")
LISTS = ("requirements.in", "requirements-local.in", "requirements-fast.in")


def requirements(name: str) -> list[Requirement]:
    """The requirements of a file, without comments and options."""
    lines = (line.partition("#")[0].strip(" \\") for line in (ROOT / name).read_text().splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith("-")]


def pins(name: str) -> dict[str, str]:
    """The version of each package in a compiled file."""
    return {
        canonicalize_name(requirement.name): str(requirement.specifier).removeprefix("==")
        for requirement in requirements(name)
    }


def test_one_version():
    version = PROJECT["project"]["version"]
    if version.endswith(".dev0"):
        assert HEADINGS[0] == "Unreleased"
        assert Version(RELEASED) < Version(version), "what is not released has the version of no release"
    else:
        assert version == RELEASED
    compose = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
    assert compose["x-image"]["image"] == f"exactbatch:{version}"


RELEASABLE = {
    "version": "1.2.0",
    "changelog": "# Changelog\n\n## Unreleased\n\n## 1.2.0\n\n- All.\n\n## 1.1.0\n\n- Less.\n",
    "tags": ["v1.2.0"],
    "changed": 0,
    "holders": ["pyproject.toml", "docker-compose.yaml"],
}


@pytest.mark.parametrize(
    ("lacking", "told"),
    [
        ({}, []),
        ({"version": "1.2.0.dev0"}, ["Write 1.2.0 instead in pyproject.toml, docker-compose.yaml."]),
        (
            {"version": "1.1.1"},
            ['Replace the heading "## Unreleased" by "## 1.1.1"', "git tag --annotate v1.1.1"],
        ),
        (
            {"changelog": "## Unreleased\n\n- New.\n\n## 1.2.0\n\n- All.\n"},
            ['has changes under "## Unreleased"'],
        ),
        ({"changelog": "## Unreleased\n\n- New.\n\n## 1.2.0\n\n## 1.1.0\n"}, ["has no section on 1.2.0"]),
        ({"changed": 3}, ["3 files are not committed"]),
        ({"tags": ["v1.1.0", "1.2.0"]}, ['git tag --annotate v1.2.0 --message "exactbatch 1.2.0"']),
    ],
    ids=["nothing", "version", "section", "unreleased", "empty section", "commits", "tag"],
)
def test_what_a_release_lacks_is_named_with_what_to_do(lacking, told):
    missing = find_missing(**{**RELEASABLE, **lacking})
    assert len(missing) == len(told), missing
    for expected, found in zip(told, missing, strict=True):
        assert expected in found


@pytest.mark.parametrize("name", LISTS)
def test_the_tested_versions_are_within_the_ranges(name):
    pinned = pins("requirements.txt")
    for requirement in requirements(name):
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize("name", LISTS)
def test_dependencies_are_ranges(name):
    """An exact version would conflict with the versions that an existing Airflow has."""
    for requirement in requirements(name):
        assert ">=" in str(requirement.specifier), requirement
        assert "==" not in str(requirement.specifier), requirement


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_compiled_versions_are_exact(name):
    for requirement in requirements(name):
        assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)), requirement


COMPILED = ("requirements.txt", "requirements-dev.txt", "requirements-executor.txt")


@pytest.mark.parametrize("name", COMPILED)
def test_every_package_has_hashes(name):
    packages = re.split(r"^(?=[a-z0-9])", (ROOT / name).read_text(), flags=re.MULTILINE)[1:]
    assert len(packages) == len(pins(name)) > 20
    assert [each for each in packages if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", each)] == []


def test_compiled_files_are_installed_with_their_hashes():
    """Each command that installs them, joined with the lines that it goes on in."""
    files = (
        "Makefile",
        "docker-compose.yaml",
        "docs/deploy/kubernetes/Dockerfile",
        "docs/deploy/kubernetes/Dockerfile.airflow",
        "docs/deploy.md",
        ".ci/run",
    )
    commands = [
        command
        for file in files
        for command in re.split(r"\n|&&", (ROOT / file).read_text().replace("\\\n", " "))
        if "pip install" in command and re.search(r"-r .*requirements[a-z-]*\.txt", command)
    ]
    assert len(commands) == 5
    assert [command for command in commands if "--require-hashes" not in command] == []


def test_compiled_files_agree():
    runtime, development = pins("requirements.txt"), pins("requirements-dev.txt")
    assert {name: runtime[name] for name in runtime.keys() & development.keys()} == {
        name: development[name] for name in runtime.keys() & development.keys()
    }


def test_the_metadata_takes_its_dependencies_from_the_lists():
    assert PROJECT["tool"]["setuptools"]["dynamic"] == {
        "dependencies": {"file": ["requirements.in"]},
        "optional-dependencies": {
            "local": {"file": ["requirements-local.in"]},
            "fast": {"file": ["requirements-fast.in"]},
        },
    }
    dockerfile = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["x-image"]["build"][
        "dockerfile_inline"
    ]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for name in (*LISTS, *PROJECT["project"]["license-files"]):
        assert name in dockerfile
        assert f"!{name}" in ignored


def test_the_license_is_the_one_of_the_metadata():
    assert PROJECT["project"]["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Version 2.0, January 2004" in text
    assert "9. Accepting Warranty or Additional Liability." in text
