"""Check that batches can run with the installed PySpark: of a supported version, and all of one version.

The packages pyspark and pyspark-client write the same files, and Airflow's Spark provider requires pyspark-client,
which has fewer releases. Of two versions, some files are those of one, some those of the other: whichever was written
last. All that a batch needs of the client is in pyspark, too, so its files are the right ones.
"""

import base64
import csv
import hashlib
import re
from collections.abc import Iterator
from importlib.abc import FileLoader
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final
from zipimport import zipimporter

from exactbatch.errors import ConfigurationError

# `make test-spark` runs the tests with each of them.
SUPPORTED: Final = ("4.0", "4.1", "4.2", "4.3")
_VERSION: Final = re.compile(r"^__version__[^=]*= *['\"](?P<version>[^'\"]+)", re.MULTILINE)
_JAR: Final = re.compile(r"spark-core_[\d.]+-(?P<version>.+)\.jar")


def check_pyspark() -> str:
    """Return the version of PySpark and of its client, for people.

    Raises ConfigurationError for a version that is not supported, and if some of its files or jars are of another
    version. If pip does not know which files PySpark has, because Spark's own folder is on the path, there is no other.
    """
    installed, client = _installed("pyspark"), _installed("pyspark-client")
    imported = _version_that_is_imported()
    version = installed.version if installed else imported
    for found in (version, imported):  # the path may have that of SPARK_HOME before the package
        if find_minor_version(found) not in SUPPORTED:
            raise ConfigurationError(
                f"PySpark is {found}, and exactbatch runs with {SUPPORTED[0]} to {SUPPORTED[-1]}. Nothing was written. "
                f"Install one of these versions, on the cluster as well: `exactbatch explain deploy` says how."
            )
    if installed is None:
        return f"PySpark {version}"
    remedy = f"Nothing was written. Run pip install --force-reinstall --no-deps pyspark=={version}"
    if client is not None and (of_client := list(_files_of_client(installed, client))):
        raise ConfigurationError(
            f"PySpark is {version}, but {len(of_client)} of its files, such as {of_client[0]}, are those of "
            f"pyspark-client {client.version}: both packages write them. {remedy}"
        )
    jars = read_jar_versions(Path(str(installed.locate_file("pyspark"))))
    if jars and jars != {version}:
        raise ConfigurationError(
            f"PySpark is {version}, but its jars are Spark {', '.join(sorted(jars))}. {remedy}"
        )
    return f"PySpark {version}" + (f", pyspark-client {client.version}" if client else "")


def read_jar_versions(home: Path) -> set[str]:
    """Return the versions of the jars of a Spark installation, usually one; empty if it has none there."""
    names = (path.name for path in (home / "jars").glob("spark-core_*.jar"))
    return {match["version"] for name in names if (match := _JAR.fullmatch(name))}


def find_minor_version(version: str) -> str:
    """Return the major and minor number of a version of Spark, such as 4.2: later ones of it only correct defects."""
    return ".".join(version.split(".")[:2])


def _version_that_is_imported() -> str:
    """Return the version of the PySpark that an import finds first, without the import, which takes half a second.

    In a driver that spark-submit starts, this is a zip file: the loader reads it.
    """
    spec = PathFinder.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigurationError("PySpark is not installed. Install exactbatch with its dependencies.")
    if not isinstance(spec.loader, FileLoader | zipimporter):
        raise ConfigurationError(
            f"PySpark is {spec.origin}, which {type(spec.loader).__name__} imports: expected a folder or a zip file, "
            f"whose version can be read. Nothing was written. Install PySpark as a package."
        )
    file = str(Path(spec.origin).with_name("version.py"))
    match = _VERSION.search(spec.loader.get_data(file).decode())
    assert match is not None, f"{spec.origin}: a PySpark without a version"
    return match["version"]


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _files_of_client(pyspark: Distribution, client: Distribution) -> Iterator[str]:
    """Yield the files that differ between the packages, and that are not there as PySpark has them."""
    theirs = _hashes(client)
    for file, expected in _hashes(pyspark).items():
        if theirs.get(file, expected) == expected:
            continue
        kind, _, digest = expected.partition("=")
        found = hashlib.new(kind, Path(str(pyspark.locate_file(file))).read_bytes()).digest()
        if base64.urlsafe_b64encode(found).rstrip(b"=").decode() != digest:
            yield file


def _hashes(package: Distribution) -> dict[str, str]:
    """Return the hashes of a package's files, such as sha256=…, without those that its RECORD gives none.

    Distribution.files takes ten times as long, at the start of each batch.
    """
    record = csv.reader((package.read_text("RECORD") or "").splitlines())
    return {file: hash_ for file, hash_, _ in record if hash_}
