"""A second DAG bundle for an Airflow of the tests: a folder for each version, which only Airflow's processes import."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_VERSION: Final = "3f2a"
_BUNDLE: Final = """
import sys
from importlib.metadata import version
from pathlib import Path
from airflow.dag_processing.bundles.base import BaseDagBundle

class VersionedBundle(BaseDagBundle):
    supports_versioning = True

    def __init__(self, *, versions, newest, **named):
        super().__init__(**named)
        self.versions, self.newest = versions, newest

    @property
    def path(self):
        return Path(self.versions, self.version or self.newest)

    def get_current_version(self):
        return self.newest

    def initialize(self):
        super().initialize()
        if version("apache-airflow").startswith("3.0."):  # the command that parses all files once leaves it out
            sys.path.append(str(self.path))

    def refresh(self):
        pass
"""


def with_versioned_bundle(folder: Path, files: Mapping[str, str]) -> dict[str, str]:
    """Write a bundle with these files, and return the variables that configure it next to the folder of DAG files.

    Airflow has to find modules in `folder`.
    """
    (folder / "versioned_bundle.py").write_text(_BUNDLE)
    for name, text in files.items():
        file = folder / "versions" / _VERSION / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    bundles = [
        {
            "name": "dags-folder",
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {},
        },
        {
            "name": "versioned",
            "classpath": "versioned_bundle.VersionedBundle",
            "kwargs": {"versions": str(folder / "versions"), "newest": _VERSION},
        },
    ]
    return {"AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles)}
