"""The error of the local stack."""

from exactbatch.errors import ExactbatchError
from exactbatch.errors.printable import printable_lines


class LocalStackError(ExactbatchError):
    """The local stack cannot do what was asked: Java, a jar, a port, an account or a server is missing."""

    @staticmethod
    def _show(message: str) -> str:
        # Its end may be the last lines of a log.
        return printable_lines(message)
