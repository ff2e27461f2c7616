"""Read the log again and compare it with the target. Shares no code with the batch path."""
