"""Find a pipeline by its `module:name`, and the `module:name` of a pipeline."""

import importlib
import sys
import traceback
from importlib.machinery import PathFinder
from pathlib import Path

from exactbatch.errors import ConfigurationError, ExactbatchError
from exactbatch.pipeline import Pipeline


def load_pipeline(reference: str) -> Pipeline:
    """Import `module:name`, as in "pipelines.flights:flights".

    Raises ConfigurationError when there is no such module, importing it fails, there is no such name in it,
    or it is not a Pipeline.
    """
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute or module_name.startswith("."):
        raise ConfigurationError(
            f"expected a pipeline as 'module:name', for example 'pipelines.flights:flights', "
            f"found {reference!r}"
        )
    try:
        module = importlib.import_module(module_name)
    except (ExactbatchError, MemoryError):
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise _not_imported(module_name, error) from error  # something that it imports is not there
        raise ConfigurationError(
            f"expected a module {module_name!r} for {reference!r}, found none: {error.name!r} cannot be "
            f"imported. A pipeline is a module in jobs/pipelines/; check the name, and PYTHONPATH."
        ) from None
    except (Exception, SystemExit) as error:
        raise _not_imported(module_name, error) from error
    pipeline = getattr(module, attribute, None)
    if isinstance(pipeline, Pipeline):
        return pipeline
    there = sorted(name for name, value in vars(module).items() if isinstance(value, Pipeline))
    raise ConfigurationError(
        f"expected a Pipeline named {attribute!r} in {module_name}, found "
        f"{type(pipeline).__name__ if hasattr(module, attribute) else 'nothing of that name'}; "
        f"the module has: {', '.join(there) or 'no pipeline'}"
    )


def _not_imported(module_name: str, error: BaseException) -> ConfigurationError:
    """What a module raised when it was imported: it would again."""
    places = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith("<")]
    place = f" ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else ""
    return ConfigurationError(
        f"the module {module_name!r} cannot be imported: {type(error).__name__}: {error}{place}. Correct it, or "
        f"install what it imports."
    )


def reference_of(pipeline: Pipeline) -> str:
    """The `module:name` under which a pipeline was imported, for another process to import it.

    Raises ConfigurationError when no module that can be imported again has it.
    """
    for module_name, module in list(sys.modules.items()):
        for name, value in list(vars(module).items()):
            # Airflow loads a DAG file under a name that nothing can import; the pipeline's own module can be.
            if value is pipeline and PathFinder.find_spec(module_name.partition(".")[0]) is not None:
                return f"{module_name}:{name}"
    raise ConfigurationError(
        f"expected pipeline {pipeline.name!r} to be a name in a module, as `flights = Pipeline(…)` in "
        f"jobs/pipelines/flights.py, found no module that has it. Move it there and import it in the DAG file."
    )
