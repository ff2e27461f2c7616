"""Workloads of a real Postgres, from its write-ahead log to the events that Debezium's connector would write of them.

source.py starts the server, sessions.py runs statements of several sessions in a given order, generate.py and named.py
have workloads, pgoutput.py reads what the server decodes, connector.py writes events, and loading.py loads them.
"""
