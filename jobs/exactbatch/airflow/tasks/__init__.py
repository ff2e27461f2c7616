"""The work of the tasks of a DAG, one module for each task. A task imports its module when it runs, a DAG file none."""
