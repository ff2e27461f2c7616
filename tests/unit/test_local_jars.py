import hashlib
import re
from pathlib import Path

import pytest

from exactbatch.local import LocalStackError
from exactbatch.local.java import DEFINITIONS, bundled_ivy, check_jars, fetch_jars, is_complete


def fetched(jars: Path) -> Path:
    folder = jars / "kafka"
    folder.mkdir(parents=True)
    (folder / "ivy.xml").write_text((DEFINITIONS / "kafka.xml").read_text())
    return folder


def test_complete_jars_are_not_fetched_again(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")  # a fetch would need Java
    folder = fetched(tmp_path)
    assert fetch_jars("kafka", tmp_path) == folder


def test_jars_of_another_version_are_not_complete(tmp_path):
    folder = fetched(tmp_path)
    assert is_complete("kafka", tmp_path)
    (folder / "ivy.xml").write_text("<ivy-module/>")
    assert not is_complete("kafka", tmp_path)


def test_jars_are_those_of_the_checkout(tmp_path):
    checksums = tmp_path / "x.sha256"
    (tmp_path / "a.jar").write_bytes(b"a")
    checksums.write_text(f"{hashlib.sha256(b'a').hexdigest()}  a.jar\n")
    check_jars(tmp_path, checksums)
    for name, content in (("a.jar", b"b"), ("b.jar", b"b")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(LocalStackError, match=f"{name}: expected the SHA-256"):
            check_jars(tmp_path, checksums)
        (tmp_path / "a.jar").write_bytes(b"a")
    for name in ("a.jar", "b.jar"):
        (tmp_path / name).unlink()
    with pytest.raises(LocalStackError, match="found no such jar"):
        check_jars(tmp_path, checksums)


def test_jars_that_differ_are_not_kept(tmp_path, monkeypatch):
    def retrieve(_definition, into, _progress):
        (into / "kafka_2.13-4.1.1.jar").write_bytes(b"other")

    monkeypatch.setattr("exactbatch.local.java._retrieve", retrieve)
    with pytest.raises(LocalStackError, match="46 of 46 jars differ"):
        fetch_jars("kafka", tmp_path / "jars")
    assert list((tmp_path / "jars").iterdir()) == []


def test_every_definition_has_checksums():
    for folder in (DEFINITIONS, Path(__file__).parents[1] / "support" / "ivy"):
        for definition in folder.glob("*.xml"):
            lines = definition.with_suffix(".sha256").read_text().splitlines()
            assert lines
            assert all(re.fullmatch(r"[0-9a-f]{64}  \S+\.jar", line) for line in lines)


def test_pyspark_brings_ivy():
    assert bundled_ivy().is_file()


def test_a_download_that_fails_is_tried_again(tmp_path, monkeypatch):
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f"#!/bin/sh\necho try >> {tmp_path}/tries\n"
        f"test $(wc -l < {tmp_path}/tries) = 3 || {{ echo 'module not found: caffeine'; exit 1; }}\n"
    )
    java.chmod(0o755)
    monkeypatch.setattr("exactbatch.local.java.find_java", lambda: str(java))
    said = []
    for tries in (3, 6):
        with pytest.raises(LocalStackError) as caught:
            fetch_jars("kafka", tmp_path / "jars", said.append)
        assert len((tmp_path / "tries").read_text().split()) == tries
        # The third succeeds, and has no jar; from the fourth on, each one fails.
        assert ("module not found: caffeine" in str(caught.value)) is (tries == 6)
    assert said.count("downloading the jars of kafka again") == 4


def test_without_network_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(
        LocalStackError, match=r"could not download the jars of kafka .*Connection refused.*Check the network"
    ):
        fetch_jars("kafka", tmp_path / "jars")
    assert list((tmp_path / "jars").iterdir()) == []
