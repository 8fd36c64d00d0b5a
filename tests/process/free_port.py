"""Finds ports for processes that a test starts, and starts again at the same port."""

import random
import socket

LOWEST = 10240


def free_port():
    """Returns a port of the loopback that nobody has, and that no outgoing connection is given: a connection of some
    other process, or one to the very port while its server is down, would keep the server from starting."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        first_outgoing = int(file.read().split()[0])
    while True:
        port = random.SystemRandom().randrange(LOWEST, max(first_outgoing, 2 * LOWEST))
        with socket.socket() as taken:
            try:
                taken.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
