from pathlib import Path

import pytest

from exactbatch.local import LocalStackError
from exactbatch.local.jars import DEFINITIONS, bundled_ivy, fetch_jars, is_complete


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


def test_pyspark_brings_ivy():
    assert bundled_ivy().is_file()


def test_without_network_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(
        LocalStackError, match=r"could not download the jars of kafka .*Connection refused.*Check the network"
    ):
        fetch_jars("kafka", tmp_path / "jars")
    assert list((tmp_path / "jars").iterdir()) == []
