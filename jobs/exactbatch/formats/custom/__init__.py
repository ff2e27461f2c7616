"""A function of the pipeline's author."""
