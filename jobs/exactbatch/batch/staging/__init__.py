"""Stage the ranges of a batch: the tasks, the tables that they fill, and what they return to the driver."""
