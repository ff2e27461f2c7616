"""Where results land: one file for each sink."""

from exactbatch.sinks.append import Append

__all__ = ["Append"]
