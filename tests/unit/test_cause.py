"""The report of an error that a task has raised has all of its message, and nothing of the trace."""

import pytest
from pyspark.errors import PythonException

from exactbatch.batch.spark.spark_errors import cause

TRACE = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/usr/lib/pyspark/worker.py", line 3622, in main
    process()
  File "/srv/jobs/exactbatch/partition_commit.py", line 321, in _row
    cursor.execute(statement, parameters)
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""
LOST = """adbc_driver_manager.OperationalError: IO: Failed to prepare query: FATAL:  terminating connection
server closed the connection unexpectedly
\tThis probably means the server terminated abnormally
\tbefore or while processing the request.

Query was: select 1
"""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("ValueError: no such thing", "ValueError: no such thing"),
        (
            LOST,
            "adbc_driver_manager.OperationalError: IO: Failed to prepare query: FATAL:  terminating connection; "
            "server closed the connection unexpectedly; This probably means the server terminated abnormally; "
            "before or while processing the request.; Query was: select 1",
        ),
    ],
)
def test_the_whole_message_is_told(message, expected):
    assert cause(PythonException(TRACE + message)) == expected
