"""Where a process and what it has started accept TCP connections."""

import psutil


def listening(pid: int) -> set[tuple[str, int]]:
    """Return the addresses and ports on which a process and its descendants listen.

    Java listens on IPv6 sockets for IPv4 addresses, too: these are returned without their prefix.
    """
    root = psutil.Process(pid)
    return {
        (connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
        for process in (root, *root.children(recursive=True))
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
