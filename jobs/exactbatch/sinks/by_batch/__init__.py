"""Append(layout="by_batch"): a target that is partitioned by batch."""
