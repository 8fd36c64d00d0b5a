"""Finds ports for processes that a test starts, and starts again at the same port."""

import random
import socket

LOWEST = 10240
_claims = []


def claim(port):
    """Returns whether no other caller of free_port has the port, in any test of this machine; it is then this process's
    until its end. A socket's abstract name says so (unix(7)), as tests/server/store/free_port.cc does: a port
    itself cannot be held while a server listens there."""
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0ovq-test-port-{port}")
    except OSError:
        name.close()
        return False
    _claims.append(name)
    return True


def free_port():
    """Returns a port of the loopback that nobody has, that no other test is given, and that no outgoing connection is
    given: a connection of some other process, or one to the very port while its server is down, would keep the server
    from starting."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        first_outgoing = int(file.read().split()[0])
    while True:
        port = random.SystemRandom().randrange(LOWEST, max(first_outgoing, 2 * LOWEST))
        with socket.socket() as taken:
            try:
                taken.bind(("127.0.0.1", port))
            except OSError:
                continue
        if claim(port):
            return port
