"""The Spark Connect server of the local stack, when another process has its port."""

import os
import socketserver
import sys
import threading
from multiprocessing import get_context
from pathlib import Path

import psutil
import pytest

from exactbatch.local.child_process import Recorded, spawn
from exactbatch.local.server import PortTaken
from exactbatch.local.stack import Connect
from exactbatch.local.state import StateFile

BIND_EXCEPTION = (
    "java.net.BindException: Failed to bind to address /127.0.0.1:15002: Service "
    "'org.apache.spark.sql.connect.service.SparkConnectService' failed after 0 retries (starting from 15002)!"
)


class Closing(socketserver.BaseRequestHandler):
    """Closes each connection at once."""


class Colliding(Connect):
    """A server that another one has forestalled, and whose port is free again."""

    def _spawn(self) -> Recorded:
        return spawn(["sh", "-c", f'echo "{BIND_EXCEPTION}"'], log=self.log_file, cwd=self.folder)


def exit_with_whether_it_is_up(folder: Path, state: StateFile) -> None:
    sys.exit(int(Connect(folder, state).is_up()))


def test_a_server_whose_port_another_process_has_is_not_up(tmp_path):
    state = StateFile(tmp_path / "state.json")
    connect = Connect(tmp_path / "connect", state)
    connect._prepare()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Closing) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        with state.change(connect.name) as changed:
            changed.ports = {"client": other.server_address[1]}
            changed.process = Recorded(pid=os.getpid(), started=psutil.Process().create_time())
        # A client that tries again for ten minutes cannot be interrupted, only killed.
        asking = get_context("spawn").Process(target=exit_with_whether_it_is_up, args=(connect.folder, state))
        asking.start()
        asking.join(60)
        asking.kill()
        asking.join()
        assert asking.exitcode == 0
        other.shutdown()


def test_a_server_that_could_not_bind_its_port_may_have_another(tmp_path):
    connect = Colliding(tmp_path / "connect", StateFile(tmp_path / "state.json"))
    connect.configure({}, None, anywhere=True)
    with pytest.raises(PortTaken, match="another process listens on port"):
        connect.start()
