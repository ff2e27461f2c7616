"""The fast path: loops that numba compiles to machine code, from JSON or Arrow columns to binary COPY rows.

They save 20% to 30% of the time and 28% to 33% of the CPU of loads of flat JSON, and nothing of nested JSON
(docs/evidence/ablation.md). Nothing here decides what a value means. The loop over JSON takes a record
only if it is sure to give the row that formats/json/spec.py gives, and declines any other. docs/fast-path.md lists what
it takes.
"""
