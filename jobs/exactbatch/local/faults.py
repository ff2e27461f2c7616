"""The error of the local stack."""

from exactbatch.errors import ExactbatchError


class LocalStackError(ExactbatchError):
    """The local stack cannot do what was asked: Java, jars, a port or a server is missing."""


class PortTaken(LocalStackError):
    """Another server listens where this one should."""
