"""The tables that sinks write to: their definition and checks, counted writes, lineage, and errors of constraints."""
