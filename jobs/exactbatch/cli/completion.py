"""What the shell completes besides commands and options: the names of pipelines."""

from importlib.util import find_spec
from pathlib import Path


def pipeline_names(incomplete: str) -> list[str]:
    """Return the modules of the package `pipelines` that begin so.

    A shell asks at each Tab: no pipeline is imported, and no server is asked. A module usually has the pipeline of its
    own name, and that is how the pipeline is registered.
    """
    try:
        package = find_spec("pipelines")
    except (ImportError, ValueError):
        return []
    folders = package.submodule_search_locations or () if package is not None else ()
    names = {file.stem for folder in folders for file in Path(folder).glob("*.py")}
    return sorted(name for name in names if name.startswith(incomplete) and not name.startswith("_"))
