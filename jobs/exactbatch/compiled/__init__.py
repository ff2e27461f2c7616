"""The fast path: loops that numba compiles to machine code, from JSON or Arrow columns to binary COPY rows.

Nothing here decides what a value means. The loop over JSON takes a record only if it is sure to give the row that
formats/json.py gives, and declines any other. docs/fast-path.md lists what it takes.
"""
