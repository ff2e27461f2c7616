"""Complete the names of pipelines in the shell."""

from exactbatch.discovery import module_names


def pipeline_names(incomplete: str) -> list[str]:
    """Return the modules of the package `pipelines` that begin so.

    A shell asks at each Tab: no pipeline is imported, and no server is asked. A module usually has the pipeline of its
    own name, and that is how the pipeline is registered.
    """
    return [name for name in module_names("pipelines") if name.startswith(incomplete)]
