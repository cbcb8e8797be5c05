"""What tests of whole processes have in common: facts that have to hold, now or soon."""

import socket
import time

PATIENCE = 120


class Failed(Exception):
    """Something is not as it has to be."""


def check(holds, what):
    if not holds:
        raise Failed(what)


def await_that(holds, what, patience=PATIENCE):
    """What `holds` returns once it is true."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        found = holds()
        if found:
            return found
        time.sleep(0.05)
    raise Failed(f"not within {patience} s: {what}")


def free_ports(count):
    """That nobody had a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def free_address():
    return f"127.0.0.1:{free_ports(1)[0]}"
