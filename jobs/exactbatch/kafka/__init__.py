"""Everything that talks to the broker: client properties, what a topic holds, and reading exact ranges."""
