from pathlib import Path

import pytest

from exactbatch.local import LocalStackError
from exactbatch.local.java import find_java, parse_version

JAVA = Path("/opt/java/bin/java")


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "25-ea" 2025-09-16', 25),
    ],
)
def test_the_major_version_is_read_from_what_java_prints(said, version):
    assert parse_version(said, JAVA) == version


def test_a_java_that_is_only_a_stub_is_named():
    with pytest.raises(LocalStackError, match=r"Unable to locate a Java Runtime.*Install"):
        parse_version("The operation couldn't be completed. Unable to locate a Java Runtime.", JAVA)


def fake_java(home: Path, version: str) -> None:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)


def test_java_home_comes_before_path(tmp_path, monkeypatch):
    fake_java(tmp_path, "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == tmp_path / "bin" / "java"


def test_a_java_that_is_too_old_is_refused(tmp_path, monkeypatch):
    fake_java(tmp_path, "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalStackError, match=r"expected Java 17 or newer, found 11 at .*Install"):
        find_java()


def test_no_java_at_all(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalStackError, match=r"found none on PATH\. Install"):
        find_java()


def test_java_home_without_java(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalStackError, match="JAVA_HOME has no Java"):
        find_java()
