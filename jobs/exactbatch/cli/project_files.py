"""Choose the folders for the files of a new pipeline: in this repository's layout, or in the layout of a project of
your own."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from exactbatch.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Project:
    """The folders of a project: `modules` is what has to be on PYTHONPATH, and has the package `pipelines`."""

    root: Path
    modules: Path

    @property
    def package(self) -> Path:
        """The file that makes the folder `pipelines` a package, which takes precedence over folders of that name."""
        return self.modules / "pipelines" / "__init__.py"

    @property
    def has_own_modules(self) -> bool:
        """True if the package `pipelines` is next to `dags`, where linters take it for the project's own."""
        return self.modules == self.root

    def find_files(self, name: str) -> tuple[Path, Path, Path]:
        """Return the paths of a pipeline's module, DAG and test."""
        return (
            self.modules / "pipelines" / f"{name}.py",
            self.root / "dags" / f"{name}.py",
            self.root / "tests" / "pipelines" / f"test_{name}.py",
        )


def project_at(folder: Path, importable: Path | None) -> Project:
    """Return the project that a folder is in: the one with the package `pipelines` in `importable`, or else a new one.

    `importable` is the folder from which Python imports the package `pipelines`; None if it finds none.
    """
    if importable is not None:
        root = importable.parent if importable.name == "jobs" else importable
        if folder.is_relative_to(root):
            return Project(root, importable)
    return Project(folder, folder / "jobs" if (folder / "jobs").is_dir() else folder)


def check_new(paths: Iterable[Path]) -> None:
    """Raise ConfigurationError, which names the files, if some exist."""
    if existing := [path for path in paths if path.exists() or path.is_symlink()]:
        raise ConfigurationError(
            f"{', '.join(map(str, existing))}: the file exists, and is not overwritten. Nothing was written. Choose "
            f"another name, or move the file away."
        )


def write_new(contents: Mapping[Path, str]) -> None:
    """Write files, with their folders.

    Raises ConfigurationError before anything is written if one of them exists, and for a file that cannot be written.
    """
    check_new(contents)
    for path, text in contents.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            before = ", ".join(str(each) for each in contents if each != path and each.exists())
            raise ConfigurationError(
                f"{path} cannot be written: {error.strerror}. Written before: {before or 'nothing'}."
            ) from error
