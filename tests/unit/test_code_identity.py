"""Which code of exactbatch a process runs, wherever that is installed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import exactbatch
from exactbatch.code_identity import code_identity, other_code

SCRIPT = "from exactbatch.code_identity import code_identity; print(code_identity())"


def digest_in(path: Path) -> str:
    """The digest of the package at this path, as another process finds it."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return digest(done.stdout)


def digest(identity: str) -> str:
    match = re.search(r"\(([0-9a-f]{12})\)", identity)
    assert match is not None, identity
    return match[1]


def test_the_same_code_is_the_same_elsewhere_and_in_an_archive(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(
        Path(exactbatch.__file__).parent, copy / "exactbatch", ignore=shutil.ignore_patterns("__pycache__")
    )
    archive = tmp_path / "exactbatch.zip"
    with ZipFile(archive, "w") as zipped:
        for file in copy.rglob("*"):
            zipped.write(file, file.relative_to(copy))
    assert digest_in(copy) == digest_in(archive) == digest(code_identity())


def test_any_changed_file_of_code_makes_another(tmp_path):
    copy = shutil.copytree(Path(exactbatch.__file__).parent, tmp_path / "exactbatch")
    before = digest_in(tmp_path)
    (copy / "guide.md").write_text("not code")
    assert digest_in(tmp_path) == before
    with (copy / "formats" / "json.py").open("a") as file:
        file.write("# a comment\n")
    assert digest_in(tmp_path) != before


def test_only_other_code_is_an_error():
    assert other_code(code_identity()) is None
    error = other_code("1.0 (0)")
    assert error is not None
    assert f"run exactbatch {code_identity()}, and the driver 1.0 (0)" in str(error)
