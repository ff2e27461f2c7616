"""The error of the local stack."""

from exactbatch.errors import ExactbatchError
from exactbatch.printable import printable_lines


class LocalStackError(ExactbatchError):
    """The local stack cannot do what was asked: Java, a jar, a port, an account or a server is missing."""

    def __init__(self, message: str) -> None:
        super().__init__("")
        # Its end may be the last lines of a log.
        self.args = (printable_lines(message),)
