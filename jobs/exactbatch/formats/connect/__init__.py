"""The types and values of Kafka Connect."""
