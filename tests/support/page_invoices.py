"""A pipeline whose function rejects some records, with the fix of that function, for Airflow to run."""

import json
from typing import Final

from exactbatch import Append, Pipeline, Text
from support.topics import Topic

GOOD, WRONG = 40, 5  # records of each partition; the wrong ones are the last of partition 0
_READ: Final = "float(amount)"
_READ_FIXED: Final = 'float(amount.replace(",", "."))'
_MODULE: Final = """
import json
import pyarrow as pa
from exactbatch import Append, Custom, Pipeline

ROWS = pa.schema({"value_index": pa.int64(), "cents": pa.int64()})

def decode(values):
    rows, rejects = [], {}
    for each in values.to_pylist():
        amount = json.loads(each["value"])["amount"]
        try:
            rows.append({"value_index": each["value_index"], "cents": round(100 * %s)})
        except ValueError:
            rejects[each["value_index"]] = f"amount {amount!r} is not a number"
    return pa.RecordBatch.from_pylist(rows, ROWS), rejects

invoices = Pipeline(
    name="invoices",
    topics=("invoices",),
    value=Custom(decode, "cents bigint"),
    sink=Append("public.invoices"),
    max_rejects=10,
    spark_conf={"spark.ui.enabled": "false", "spark.driver.memory": "512m"},
)
"""
DAG: Final = """
from exactbatch.airflow import pipeline_dag
from invoices_of_page import invoices
dag = pipeline_dag(invoices, retries=0)
"""
# As the ledger knows it: the module is imported by Airflow alone.
INVOICES: Final = Pipeline(
    name="invoices", topics=("invoices",), value=Text("line"), sink=Append("public.invoices")
)


def module_of(*, is_fixed: bool) -> str:
    """Return the text of the module, whose function takes a decimal comma for an error unless it is fixed."""
    return _MODULE % (_READ_FIXED if is_fixed else _READ)


def produce_invoices(topic: Topic) -> None:
    """Produce records with a decimal point, and after them a group with a comma."""
    for partition in range(2):
        topic.produce(*[json.dumps({"amount": "9.50"}).encode()] * GOOD, partition=partition)
    topic.produce(*[json.dumps({"amount": f"{n},50"}).encode() for n in range(WRONG)])
