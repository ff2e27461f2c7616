"""Talk to Kafka: client properties, the state of topics, and exact reads of ranges."""
