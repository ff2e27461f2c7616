"""From the records of a topic to a proposed pipeline: its format, columns, key and sink, and their source code.

Pure, without I/O, but for the schemas of a registry, which formats fetch. kafka/sample.py reads the records.
"""
