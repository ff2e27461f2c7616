"""Import a pipeline, or Tables, by its `module:name`, and find the `module:name` of one."""

import importlib
import sys
import traceback
from difflib import get_close_matches
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from exactbatch.errors import ConfigurationError, ExactbatchError, WrongUsage
from exactbatch.pipeline import Pipeline
from exactbatch.tables import Tables

_SHOWN: Final = 20  # modules of a package in a message


def load_pipeline(reference: str) -> Pipeline:
    """Import `module:name`, as in "pipelines.flights:flights".

    Raises ConfigurationError if there is no such module, importing it fails, it has no such name, or the name is
    not a Pipeline.
    """
    found = load_object(reference)
    if isinstance(found, Tables):
        raise ConfigurationError(
            f"expected a Pipeline as {reference!r}, found Tables, which has many. Name one of them: {reference}.TABLE"
        )
    return found


def load_object(reference: str) -> Pipeline | Tables:
    """Import `module:name`, a Pipeline or Tables. Raises ConfigurationError as load_pipeline() does."""
    try:
        return _find_object(reference)
    except WrongUsage as error:
        raise ConfigurationError(str(error)) from None


def _find_object(reference: str, *, typed: str | None = None) -> Pipeline | Tables:
    """Import as load_object() does what was `typed` so, or in short.

    Raises WrongUsage, and ConfigurationError for a module whose import fails.
    """
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute or module_name.startswith("."):
        raise WrongUsage(
            f"expected a pipeline as 'module:name', for example 'pipelines.flights:flights', "
            f"found {reference!r}"
        )
    try:
        module = importlib.import_module(module_name)
    except (ExactbatchError, MemoryError):
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise _not_imported(
                module_name, error
            ) from error  # the module imports something that does not exist
        raise WrongUsage(
            f"there is no module {module_name!r} for {(typed or reference)!r}{_meant(module_name)}"
        ) from None
    except (Exception, SystemExit) as error:
        raise _not_imported(module_name, error) from error
    pipeline = getattr(module, attribute, None)
    if isinstance(pipeline, Pipeline | Tables):
        return pipeline
    pipelines = sorted(name for name, value in vars(module).items() if isinstance(value, Pipeline | Tables))
    raise WrongUsage(
        f"expected a Pipeline named {attribute!r} in {module_name}, found "
        f"{type(pipeline).__name__ if hasattr(module, attribute) else 'nothing of that name'}; "
        f"the module has: {', '.join(pipelines) or 'no pipeline'}"
    )


def _meant(module_name: str) -> str:
    """Return the rest of a sentence on a module that does not exist: which ones its package has."""
    package, _, name = module_name.rpartition(".")
    there = module_names(package)
    if not there:
        return ". Correct the name, or add the folder that has it to PYTHONPATH."
    similar = get_close_matches(name, there, n=1)
    meant = f" Did you mean {similar[0]}?" if similar else ""
    more = ", …" if len(there) > _SHOWN else ""
    return f". The package {package} has: {', '.join(there[:_SHOWN])}{more}.{meant}"


def module_names(package: str) -> list[str]:
    """Return the modules of a package, in alphabetical order, without importing one; none if there is no package."""
    try:
        found = find_spec(package)
    except (ImportError, ValueError):
        return []
    folders = found.submodule_search_locations or () if found is not None else ()
    names = {file.stem for folder in folders for file in Path(folder).glob("*.py")}
    return sorted(name for name in names if not name.startswith("_"))


def load_named(reference: str) -> tuple[Pipeline | Tables, str | None]:
    """Import what a command names as MODULE:NAME, or as NAME for pipelines.NAME:NAME; return also the table of
    MODULE:NAME.TABLE and NAME.TABLE, or None.

    Raises WrongUsage, also for a table of a Pipeline, and ConfigurationError for a module whose import fails.
    """
    if "/" in reference or reference.endswith(".py"):
        raise WrongUsage(
            f"expected the name of a pipeline, found the path {reference!r}. Write NAME for pipelines.NAME:NAME, or "
            f"MODULE:NAME."
        )
    whole, table = split_table(reference)
    found = _find_object(whole if ":" in whole else f"pipelines.{whole}:{whole}", typed=whole)
    if table is not None and not isinstance(found, Tables):
        raise WrongUsage(f"{whole!r} is one pipeline, and no Tables. Leave out {f'.{table}'!r}.")
    return found, table


def split_table(reference: str) -> tuple[str, str | None]:
    """Return what a command names without the table, as MODULE:NAME or NAME, and the table, or None."""
    module, colon, name = reference.rpartition(":")
    name, dot, table = name.partition(".")
    return f"{module}{colon}{name}", table if dot else None


def import_folder(reference: str) -> str | None:
    """Return the folder from which this process imports the module of `module:name`; None if it finds no module.

    Airflow adds the folder of a DAG bundle to the search path of its own processes only.
    """
    spec = PathFinder.find_spec(reference.partition(":")[0].partition(".")[0])
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return str(Path(next(iter(spec.submodule_search_locations))).parent)
    return None if spec.origin is None else str(Path(spec.origin).parent)


def _not_imported(module_name: str, error: BaseException) -> ConfigurationError:
    """Return the error for a module whose import raises; it would raise on every retry."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")
    ]
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return ConfigurationError(
        f"the module {module_name!r} cannot be imported: {type(error).__name__}: {error}{place}. Correct it, or "
        f"install what it imports."
    )


def find_reference(pipeline: Pipeline | Tables) -> str:
    """Return the `module:name` under which a pipeline was imported, for another process to import it.

    Raises ConfigurationError if no module that can be imported again has it.
    """
    for module_name, module in list(sys.modules.items()):
        for name, value in list(getattr(module, "__dict__", {}).items()):  # None blocks an import
            # Airflow loads a DAG file under a name that cannot be imported; the pipeline's own module can be.
            if value is pipeline and PathFinder.find_spec(module_name.partition(".")[0]) is not None:
                return f"{module_name}:{name}"
    raise ConfigurationError(
        f"no module has the pipeline {pipeline.name!r}. Assign it to a name in a module, as `flights = "
        f"Pipeline(…)` in jobs/pipelines/flights.py, and import it in the DAG file."
    )
