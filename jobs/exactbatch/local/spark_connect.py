"""A Spark Connect server on this machine, for engine="connect"."""

import os
from collections.abc import Mapping
from typing import ClassVar

from exactbatch.batch.engines.connect_server import PORT, TOKEN, server_command, server_environment
from exactbatch.local.child_process import Recorded, spawn
from exactbatch.local.ports import accepts
from exactbatch.local.server import NotReady, Server

# Not an IP address: gRPC sends a token without TLS to this name only.
_HOST = "localhost"


class Connect(Server):
    """The stack's Spark Connect server, on all cores of this machine. Its settings are Spark properties."""

    name: ClassVar[str] = "connect"
    title: ClassVar[str] = "Spark Connect"
    usual_ports: ClassVar[Mapping[str, int]] = {"client": PORT}

    @property
    def address(self) -> str:
        """The host:port for clients."""
        return f"{_HOST}:{self.port}"

    @property
    def token(self) -> str:
        """The secret that clients send; the server accepts no other."""
        return self.secret

    @property
    def url(self) -> str:
        """The URL for clients, which contains the token."""
        return f"sc://{self.address}/;token={self.token}"

    def _prepare(self) -> None:
        self._choose_secret()

    def _spawn(self) -> Recorded:
        properties = {
            "spark.default.parallelism": str(os.cpu_count()),
            "spark.local.dir": str(self.data_dir),
            "spark.sql.warehouse.dir": str(self.data_dir / "warehouse"),
            **self.settings,
        }
        command = server_command("local[*]", "127.0.0.1", self.port, properties)
        environment = {**server_environment(), TOKEN: self.token}
        return spawn(command, log=self.log_file, cwd=self.folder, env=environment)

    def _ask(self) -> None:
        # While the port is closed, the client would wait.
        if not accepts(self.port):
            raise NotReady(f"nothing listens on port {self.port}")
        # PySpark's client takes a second to import, and every command without connections imports the stack.
        from pyspark.errors import PySparkException
        from pyspark.sql.connect.session import SparkSession

        session = SparkSession(self.url)
        # By default the client tries again for ten minutes, even if another server has the port and refuses the token.
        session.client.set_retry_policies([])
        try:
            _ = session.version
        except PySparkException as error:
            raise NotReady(str(error).splitlines()[0]) from error
        finally:
            session.stop()
