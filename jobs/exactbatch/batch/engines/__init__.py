"""The engines that run the tasks of a batch: the Spark driver of this process, or a Spark Connect server."""
