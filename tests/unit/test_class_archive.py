"""The archive of Spark's classes: which one fits, and that a batch never needs it."""

import os
import subprocess
from pathlib import Path

import pytest

from exactbatch.batch.spark import class_archive
from exactbatch.batch.spark.class_archive import archive_file, archive_folder, build_archive, with_archive
from exactbatch.errors import ConfigurationError
from support.waiting import wait_for


@pytest.fixture
def archive(tmp_path):
    """A file in the place of the archive of this Java and this Spark."""
    file = archive_file(tmp_path)
    assert file is not None
    file.write_bytes(b"no archive")
    return file


@pytest.fixture
def other_java(tmp_path):
    java = tmp_path / "other" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    return java


def test_an_archive_is_of_one_java_and_one_spark(archive, tmp_path, other_java, monkeypatch):
    assert with_archive({}, tmp_path)["SPARK_SUBMIT_OPTS"].startswith(f"-XX:SharedArchiveFile={archive} ")
    monkeypatch.setenv("JAVA_HOME", str(other_java.parents[1]))
    of_another_java = archive_file(tmp_path)
    assert with_archive({}, tmp_path) == {}
    os.utime(other_java, (0, 0))  # as after an update of Java
    assert archive_file(tmp_path) not in (archive, of_another_java)
    monkeypatch.undo()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert with_archive({}, tmp_path) == {}


def test_without_java_there_is_nothing_to_use(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "missing"))
    assert with_archive({}, tmp_path) == {}
    with pytest.raises(ConfigurationError, match="expected Java 17 or newer, found none"):
        build_archive(tmp_path)


@pytest.mark.usefixtures("archive")
@pytest.mark.parametrize("given", ["-Xshare:off", "-XX:SharedArchiveFile=/mine.jsa -Xmx1g"])
def test_options_about_archives_are_the_users(tmp_path, given):
    assert with_archive({"SPARK_SUBMIT_OPTS": given}, tmp_path) == {}


def test_other_options_are_kept(archive, tmp_path):
    options = with_archive({"SPARK_SUBMIT_OPTS": "-Dspark.a=b"}, tmp_path)["SPARK_SUBMIT_OPTS"]
    assert options.startswith(f"-XX:SharedArchiveFile={archive} ")
    assert options.endswith(" -Dspark.a=b")  # Java takes the last of two contradicting options
    assert "TieredStopAtLevel" not in options
    quick = with_archive({"SPARK_SUBMIT_OPTS": "-Dspark.a=b"}, tmp_path, offsets=1)["SPARK_SUBMIT_OPTS"]
    assert "-XX:TieredStopAtLevel=1 -Dspark.a=b" in quick


@pytest.mark.usefixtures("archive")
@pytest.mark.parametrize(
    ("is_transformed", "offsets", "is_quick"),
    [
        (True, 99_999, True),
        (True, 100_000, False),
        (True, None, False),
        (False, 100_000, True),
        (False, None, True),
    ],
)
def test_a_jvm_with_little_to_compile_uses_the_quick_compiler(tmp_path, is_transformed, offsets, is_quick):
    options = with_archive({}, tmp_path, is_transformed=is_transformed, offsets=offsets)["SPARK_SUBMIT_OPTS"]
    assert ("-XX:TieredStopAtLevel=1" in options) == is_quick
    assert ("-XX:Tier4InvocationThreshold=50000" in options) != is_quick


@pytest.mark.usefixtures("archive")
@pytest.mark.parametrize("offsets", [1, 1_000_000])
def test_java_knows_the_options(tmp_path, offsets):
    options = with_archive({}, tmp_path, offsets=offsets)["SPARK_SUBMIT_OPTS"].split()
    started = subprocess.run(["java", *options, "-version"], capture_output=True, text=True, check=False)
    assert started.returncode == 0, started.stderr
    assert "warning" not in (started.stdout + started.stderr).lower()


def test_java_starts_with_a_damaged_archive_and_prints_nothing_about_it(archive):
    options = class_archive.archive_options(archive).split()
    started = subprocess.run(["java", *options, "-version"], capture_output=True, text=True, check=True)
    assert "archive" not in (started.stdout + started.stderr).lower()


def test_an_archive_is_built_once(archive, tmp_path, monkeypatch):
    monkeypatch.setattr(class_archive.subprocess, "Popen", lambda *_, **__: pytest.fail("Spark is started"))
    assert build_archive(tmp_path) == (archive, False)


def test_a_folder_that_is_read_only_is_named(monkeypatch):
    with pytest.raises(
        ConfigurationError, match=r"cannot be written to /proc/exactbatch: .*EXACTBATCH_ARCHIVES"
    ):
        build_archive(Path("/proc/exactbatch"))
    monkeypatch.setenv("EXACTBATCH_ARCHIVES", "/elsewhere")
    assert archive_folder() == Path("/elsewhere")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "print('Cannot have non-empty directory in paths')",
            "wrote no archive: Cannot have .* SPARK_CONF_DIR",
        ),
        # Java writes one also when Spark fails.
        ("open({new!r}, 'w'); exit('no port is free')", "ended with exit status 1 while .*: no port is free"),
    ],
)
def test_what_spark_says_instead_of_leaving_an_archive_is_shown(tmp_path, monkeypatch, script, said):
    archive = archive_file(tmp_path)
    assert archive is not None
    monkeypatch.setattr(class_archive, "_BATCH", script.format(new=str(archive.with_suffix(".new"))))
    with pytest.raises(ConfigurationError, match=said):
        build_archive(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["archive.lock"]


def test_a_spark_that_does_not_end_leaves_no_process(tmp_path, monkeypatch):
    started = tmp_path / "pid"
    script = (
        "import subprocess, time; child = subprocess.Popen(['sleep', '600']); "
        f"open({str(started)!r}, 'w').write(str(child.pid)); time.sleep(600)"
    )
    monkeypatch.setattr(class_archive, "_BATCH", script)
    monkeypatch.setattr(class_archive, "_BUILD_TIMEOUT", 5)
    with pytest.raises(ConfigurationError, match="did not end within 5 s"):
        build_archive(tmp_path)
    child = int(started.read_text())
    wait_for(lambda: not is_running(child), "the end of the child", timeout=30)


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
