"""What the tasks of a DAG do, one module for each task. A task imports its module when it runs, a DAG file none."""
