"""commit="partition": each task copies its range into the target and commits it."""
