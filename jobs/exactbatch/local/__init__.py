"""Kafka, Postgres and Spark Connect on this machine, for the demo, the tests and the benchmarks: the extra `local`."""

from exactbatch.local.stack import LocalStack
from exactbatch.local.stack_error import LocalStackError

__all__ = ["LocalStack", "LocalStackError"]
