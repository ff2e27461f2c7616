"""The fast path is harmless where it is absent or cannot be compiled, and right wherever its code comes from."""

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from exactbatch.batch.rows import row_encoder
from exactbatch.compiled import availability
from exactbatch.errors import ConfigurationError
from support.new_process import run

_IS_AVAILABLE = """
from exactbatch.compiled.availability import is_available
print(is_available(), is_available())
"""


def test_without_numba_there_is_one_line_in_the_log():
    ended = run("import sys; sys.modules['numba'] = None" + _IS_AVAILABLE)
    assert ended.stdout == "False False\n", ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "records are loaded without the fast path, which is slower" in ended.stderr
    assert "Install exactbatch[fast]" in ended.stderr


def test_without_a_writable_directory_there_is_one_line_in_the_log(tmp_path):
    """As with a package, a home and a cache that are read-only."""
    file = tmp_path / "file"
    file.touch()
    blocked = (
        "import pathlib; from exactbatch.compiled import compiler\n"
        f"compiler._HERE = pathlib.Path({str(file)!r})\n"
    )
    ended = run(blocked + _IS_AVAILABLE, NUMBA_CACHE_DIR=str(file), XDG_CACHE_HOME=str(file), HOME=str(file))
    assert ended.stdout == "False False\n", ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "is writable" in ended.stderr


@pytest.mark.parametrize("prepared", ["by another user", "writable for all", "a link"])
def test_a_directory_in_which_others_can_write_is_not_used(tmp_path, prepared):
    """Anyone can compute its name, and what numba finds in it is unpickled."""
    from exactbatch.compiled import compiler

    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    planted = shared / f"exactbatch-{compiler._fingerprint()}"
    if prepared == "a link":
        planted.symlink_to(tmp_path)
    else:
        planted.mkdir()
        planted.chmod(0o777)
    if prepared == "by another user":
        planted.chmod(0o755)
        try:
            os.chown(planted, 1, 1)
        except PermissionError:
            pytest.skip("only root can give a folder to another user")
    used = "from exactbatch.compiled import availability\nprint(availability.prepare())"
    ended = run(used, NUMBA_CACHE_DIR=str(shared))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() not in ("", str(planted))
    assert not list(planted.rglob("*.nb*"))
    assert ended.stderr.count("is not used for machine code: others can write in it") == 1


def test_the_directory_of_machine_code_is_closed_to_others(tmp_path):
    """Even if whoever starts the process lets its group write."""
    used = (
        "import os; os.umask(0)\nfrom exactbatch.compiled import compiler\nprint(compiler.cache_directory())"
    )
    ended = run(used, NUMBA_CACHE_DIR=str(tmp_path))
    assert stat.S_IMODE(Path(ended.stdout.strip()).stat().st_mode) == 0o700, ended.stderr


def test_code_that_was_compiled_into_a_package_that_is_now_read_only_is_copied(tmp_path, monkeypatch):
    from exactbatch.compiled import compiler

    own = tmp_path / "package" / "__pycache__" / f"exactbatch-{compiler._fingerprint()}"
    (own / "compiled_x").mkdir(parents=True)
    (own / "compiled_x" / "f.1.nbc").write_bytes(b"code")
    (own / "compiled_x" / "f.nbi").write_bytes(b"index")
    monkeypatch.setattr(compiler, "_fingerprint", lambda: own.name.removeprefix("exactbatch-"))
    monkeypatch.setattr(compiler, "_HERE", tmp_path / "package")
    monkeypatch.setattr(compiler._config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    is_usable = compiler._is_usable
    monkeypatch.setattr(compiler, "_is_usable", lambda directory: directory != own and is_usable(directory))
    directory = compiler.cache_directory()
    assert directory == tmp_path / "cache" / own.name
    copied = {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*.*")}
    assert copied == {"compiled_x/f.1.nbc": b"code", "compiled_x/f.nbi": b"index"}


def test_another_source_has_another_directory(tmp_path, monkeypatch):
    """numba alone would not notice that a function in another file has changed."""
    from exactbatch.compiled import compiler

    before = compiler._fingerprint()
    for source in Path(compiler.__file__).parent.glob("*.py"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(compiler, "_HERE", tmp_path)
    assert compiler._fingerprint() == before
    with (tmp_path / "moments.py").open("a") as source:
        source.write("#")
    assert compiler._fingerprint() != before


def test_a_forked_process_runs_the_code_that_its_parent_has_loaded():
    forked = """
import os
from exactbatch.compiled.availability import prepare
from exactbatch.compiled.trial import check_machine_code
prepare()
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        check_machine_code()
        os._exit(7)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""
    assert run(forked).stdout == "[7, 7, 7]\n"


@pytest.mark.parametrize(
    ("value", "loaded", "offsets", "expected"),
    [
        ("", False, availability.PAYS_FROM - 1, False),
        ("", False, availability.PAYS_FROM, True),
        ("", True, 1, True),
        ("off", True, 10**9, False),
        (" OFF ", True, 10**9, False),
        ("10", False, 10, True),
        ("10", True, 9, False),
        ("0", False, 1, True),
    ],
)
def test_the_size_of_a_range_decides(monkeypatch, value, loaded, offsets, expected):
    monkeypatch.setenv(availability.VARIABLE, value)
    monkeypatch.setattr(availability, "_loaded", loaded)
    assert availability.is_worth_compiling(offsets) is expected


@pytest.mark.parametrize("value", ["no", "-1", "1.5", "150_000", "²"])
def test_a_value_that_is_neither_a_number_nor_off_is_refused(monkeypatch, value):
    monkeypatch.setenv(availability.VARIABLE, value)
    with pytest.raises(
        ConfigurationError, match=f"EXACTBATCH_FAST_PATH is '{value}', which is neither a number"
    ):
        availability.is_worth_compiling(1)


def test_machine_code_that_reads_another_row_is_not_used(monkeypatch: Any):
    from exactbatch.compiled import trial

    another = pa.record_batch({"a": pa.array([7], pa.int32()), "b": ["éx"]})
    monkeypatch.setattr(trial.RowsAsArrow, "read", lambda *_arguments: another)
    with pytest.raises(RuntimeError, match="does not give what it should"):
        trial.check_machine_code()


def test_rows_that_do_not_end_where_their_bytes_do_are_refused():
    from exactbatch.compiled.rows_arrow import RowsAsArrow

    batch = pa.record_batch({"a": pa.array([1, None], pa.int32())})
    data, rows = b"\0\0\0\4\0\0\0\1\xff\xff\xff\xff", RowsAsArrow(batch.schema)
    assert rows.read(data, 2) == batch
    with pytest.raises(RuntimeError, match="expected 1 rows in 12 bytes, found them in 8"):
        rows.read(data, 1)


def test_a_driver_does_not_import_numba():
    code = "import sys, exactbatch.batch.job, exactbatch.batch.staging.stage_partition; print('numba' in sys.modules)"
    assert run(code).stdout == "False\n"


@pytest.mark.parametrize(("slot_offsets", "expected"), [(0, 10), (200_000, 200_000)])
def test_a_worker_that_reads_many_splits_loads_the_code_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch, slot_offsets: int, expected: int
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(row_encoder, "is_worth_compiling", lambda offsets: bool(asked.append(offsets)))
    task = SimpleNamespace(range=range(10), slot_offsets=slot_offsets)
    assert not row_encoder.reads_fast(task)  # type: ignore[arg-type]
    assert asked == [expected]
