"""Which versions of PySpark batches run with, and files of two of them in one folder."""

import base64
import hashlib
from importlib.machinery import BuiltinImporter, ModuleSpec, PathFinder
from pathlib import Path
from shutil import make_archive

import pyspark
import pytest

from exactbatch.batch.spark.pyspark_packages import check_pyspark, read_jar_versions
from exactbatch.errors import ConfigurationError
from exactbatch.operations.doctor.finding import run_check
from exactbatch.operations.doctor.machine import check_spark


class Packages:
    """Installed packages, in the order of their installation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, name: str, version: str, files: dict[str, str]) -> None:
        """Write the files over those of others, as pip does."""
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        record = ""
        for path, text in files.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_text(text)
            found = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={found},{len(text)}\n"
        (info / "RECORD").write_text(record)


def files(version: str) -> dict[str, str]:
    return {
        "pyspark/version.py": f'__version__ = "{version}"\n',
        "pyspark/sql/session.py": f"# of {version}\n",
        "pyspark/sql/types.py": "# of both\n",
    }


def with_jars(version: str) -> dict[str, str]:
    return files(version) | {f"pyspark/jars/spark-core_2.13-{version}.jar": ""}


@pytest.fixture
def packages(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    return Packages(tmp_path)


@pytest.mark.parametrize("version", ["4.0.5", "4.1.4", "4.2.1", "4.3.0"])
def test_a_supported_version_without_files_of_another_is_fine(packages, version):
    packages.install("pyspark-client", "4.0.4", files("4.0.4"))
    packages.install("pyspark", version, with_jars(version))
    assert check_pyspark() == f"PySpark {version}, pyspark-client 4.0.4"
    (finding,) = run_check("spark", check_spark)
    assert (finding.level, finding.found) == ("ok", f"PySpark {version}, pyspark-client 4.0.4")


@pytest.mark.parametrize("version", ["3.5.9", "4.4.0", "5.0.0"])
def test_another_version_is_refused(packages, version):
    packages.install("pyspark", version, with_jars(version))
    with pytest.raises(ConfigurationError) as refused:
        check_pyspark()
    assert str(refused.value).startswith(f"PySpark is {version}, and exactbatch runs with 4.0 to 4.3. ")


@pytest.mark.parametrize("zipped", [False, True])
def test_another_version_that_is_on_the_path_before_the_package_is_refused(packages, monkeypatch, zipped):
    """The path of a driver that spark-submit starts begins with a zip file."""
    packages.install("pyspark", "4.2.0", with_jars("4.2.0"))
    of_spark_home = packages.folder / "home"
    (of_spark_home / "pyspark").mkdir(parents=True)
    (of_spark_home / "pyspark" / "__init__.py").touch()
    (of_spark_home / "pyspark" / "version.py").write_text("__version__: str = '3.5.9'\n")
    if zipped:
        of_spark_home = Path(make_archive(str(of_spark_home), "zip", of_spark_home))
    monkeypatch.syspath_prepend(of_spark_home)
    with pytest.raises(ConfigurationError, match=r"^PySpark is 3\.5\.9, and exactbatch runs with"):
        check_pyspark()


def test_files_of_the_client_in_those_of_pyspark_are_refused_with_the_command_that_helps(packages):
    packages.install("pyspark", "4.2.1", with_jars("4.2.1"))
    packages.install("pyspark-client", "4.2.0", files("4.2.0"))
    with pytest.raises(ConfigurationError) as refused:
        check_pyspark()
    message, command = str(refused.value).split("Run ")
    assert "PySpark is 4.2.1, but 2 of its files, such as pyspark/version.py, are those of" in message
    assert command == "pip install --force-reinstall --no-deps pyspark==4.2.1"
    (finding,) = run_check("spark", check_spark)
    assert (finding.level, finding.remedy) == ("problem", f"Run {command}")


def test_one_file_of_the_client_is_enough(packages):
    """uv writes the files of several packages at the same time."""
    packages.install("pyspark", "4.3.0", with_jars("4.3.0"))
    packages.install(
        "pyspark-client",
        "4.2.0",
        files("4.2.0") | {"pyspark/version.py": files("4.3.0")["pyspark/version.py"]},
    )
    with pytest.raises(ConfigurationError, match=r"but 1 of its files, such as pyspark/sql/session\.py, are"):
        check_pyspark()


def test_jars_of_another_version_are_refused(packages):
    packages.install("pyspark", "4.2.0", files("4.2.0") | {"pyspark/jars/spark-core_2.13-4.2.1.jar": ""})
    with pytest.raises(ConfigurationError, match=r"^PySpark is 4\.2\.0, but its jars are Spark 4\.2\.1\. "):
        check_pyspark()


def test_the_spark_that_runs_the_tests_is_known():
    assert read_jar_versions(Path(pyspark.__file__).parent) == {pyspark.__version__}
    assert check_pyspark().startswith(f"PySpark {pyspark.__version__}")


def test_a_pyspark_that_is_imported_in_another_way_is_named(packages, monkeypatch):
    packages.install("pyspark", "4.2.0", with_jars("4.2.0"))
    spec = ModuleSpec("pyspark", BuiltinImporter, origin="somewhere")
    monkeypatch.setattr(PathFinder, "find_spec", lambda _name: spec)
    with pytest.raises(
        ConfigurationError, match="^PySpark is somewhere, which type imports: expected a folder"
    ):
        check_pyspark()
