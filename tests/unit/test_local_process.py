import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from exactbatch.local import LocalStack, LocalStackError
from exactbatch.local.child_process import (
    Recorded,
    accepts,
    becomes_free,
    find_port,
    is_free,
    spawn,
    wait_until_ended,
)
from exactbatch.local.state import ServerState, StateFile

SLEEP = (sys.executable, "-c", "print('here', flush=True); import time; time.sleep(60)")


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_taken_port_is_passed_over(listening):
    assert not is_free(listening)
    assert accepts(listening)
    assert not becomes_free(listening, 0.1)
    found = find_port(listening)
    assert found != listening
    assert is_free(found)


def test_free_port_is_taken_as_preferred_unless_it_is_chosen_already():
    free = find_port(0)
    assert find_port(free) == free
    assert find_port(free, frozenset({free})) != free


def test_no_connection_of_a_client_can_take_a_port_that_was_found():
    first, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert all(find_port(None) < int(first) for _ in range(20))


def test_a_process_is_recognised_until_it_ends(tmp_path):
    recorded = spawn(SLEEP, log=tmp_path / "log", cwd=tmp_path)
    process = recorded.running()
    assert process is not None
    process.kill()
    assert wait_until_ended([process], timeout_s=10)
    assert recorded.running() is None


def test_process_is_in_session_of_its_own_and_writes_to_its_log(tmp_path):
    recorded = spawn(SLEEP, log=tmp_path / "log", cwd=tmp_path)
    process = recorded.running()
    assert process is not None
    try:
        assert os.getsid(process.pid) == process.pid
        for _ in range(100):
            if (tmp_path / "log").read_text() == "here\n":
                break
            wait_until_ended([process], timeout_s=0.1)
        assert (tmp_path / "log").read_text() == "here\n"
    finally:
        process.kill()
        assert wait_until_ended([process], timeout_s=10)


def test_a_pid_that_is_used_again_is_another_process():
    with subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL) as other:
        started = psutil.Process(other.pid).create_time()
        assert Recorded(pid=other.pid, started=started).running() is not None
        assert Recorded(pid=other.pid, started=started - 60).running() is None
        other.send_signal(signal.SIGKILL)


def test_down_does_not_hit_a_process_that_has_the_pid_by_now(tmp_path):
    with subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL) as other:
        stack = LocalStack(tmp_path, "other")
        stack.folder.mkdir()
        started = psutil.Process(other.pid).create_time() - 60
        for server in ("kafka", "postgres"):
            state = ServerState(ports={"client": 1}, process=Recorded(pid=other.pid, started=started))
            StateFile(stack.folder / "state.json").write(server, state)
        assert [server.up for server in stack.status()] == [False, False]
        stack.broker.kill()
        stack.postgres.stop()
        assert stack.down() is False
        assert other.poll() is None
        other.send_signal(signal.SIGKILL)


def test_state_is_what_was_written(tmp_path):
    file = StateFile(tmp_path / "state.json")
    assert file.read("kafka") == ServerState()
    state = ServerState(
        ports={"client": 9092}, process=Recorded(pid=7, started=1.5), settings={"num.partitions": "3"}
    )
    file.write("kafka", state)
    file.write("postgres", replace(state, process=None))
    assert file.read("kafka") == state
    assert file.read("postgres").process is None


@pytest.mark.parametrize("text", ["{", "[]", '{"kafka": {"pid": 7}}'])
def test_a_state_that_cannot_be_read_is_named(tmp_path, text):
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(LocalStackError, match=r"the state of the stack in .*state\.json cannot be read"):
        StateFile(tmp_path / "state.json").read("kafka")


@pytest.mark.parametrize("name", ["jars", "../x", "", "A"])
def test_a_stack_name_is_a_plain_folder_name(tmp_path, name):
    with pytest.raises(LocalStackError, match="expected a stack name"):
        LocalStack(tmp_path, name)


def test_home_is_named_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("EXACTBATCH_HOME", str(tmp_path))
    assert LocalStack().folder == tmp_path / "dev"
    monkeypatch.delenv("EXACTBATCH_HOME")
    monkeypatch.chdir(tmp_path)
    assert LocalStack().folder == tmp_path / ".local" / "dev"


def test_a_stack_that_was_never_up_has_no_address(tmp_path):
    with pytest.raises(LocalStackError, match="never started. Start the stack"):
        _ = LocalStack(tmp_path).bootstrap_servers
