"""Sessions, jobs and errors of the Spark driver of this process."""
