"""The error of the local stack."""

from exactbatch.errors import ExactbatchError


class LocalStackError(ExactbatchError):
    """The local stack cannot do what was asked: Java, a jar, a port, an account or a server is missing."""
