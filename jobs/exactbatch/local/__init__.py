"""Kafka, Postgres and Spark Connect on this machine, for the demo, the tests and the benchmarks: the extra `local`."""

from exactbatch.local.errors import LocalStackError
from exactbatch.local.stack import LocalStack

__all__ = ["LocalStack", "LocalStackError"]
