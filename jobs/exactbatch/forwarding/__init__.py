"""Send the results that batches have committed to a topic, exactly once, in Kafka transactions."""
