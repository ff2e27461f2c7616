"""A Structured Streaming job as it is often written: foreachBatch with JDBC, whose checkpoint a test reads.

python -m support.streaming_job KAFKA_PROPERTIES TOPIC JDBC_URL TABLE CHECKPOINT [fails]
"""

import json
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from support.logins import java_properties


def main(properties: str, topic: str, url: str, table: str, checkpoint: str, *fails: str) -> None:
    """Process what is new in one micro-batch and end; with `fails`, fail after the rows are written."""
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()

    def write(batch: Any, _: int) -> None:
        value = F.from_json(F.col("value").cast("string"), "id int, name string")
        rows = batch.select(value.alias("v"), "partition", "offset").select("v.*", "partition", "offset")
        rows.write.mode("append").jdbc(url, table, properties={"driver": "org.postgresql.Driver"})
        if fails:
            raise RuntimeError("the job was ended before Spark recorded the batch")

    kafka = java_properties(json.loads(properties))
    records = spark.readStream.format("kafka").options(
        **{f"kafka.{name}": value for name, value in kafka.items()},
        subscribe=topic,
        startingOffsets="earliest",
    )
    stream = records.load().writeStream.foreachBatch(write).trigger(availableNow=True)
    stream.option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
