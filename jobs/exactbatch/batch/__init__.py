"""Run one planned batch: stage its ranges on executors, then publish rows and offsets in one transaction."""
