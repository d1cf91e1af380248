"""Ports for tests that start servers of their own."""

import random
import socket


def free_port():
    """A port of 127.0.0.1 on which nobody listens, below those that Linux gives to connections: a
    client that comes before its server could be given the server's port there, and connect to
    itself. (PyTorch's rendezvous does, and hangs.)"""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
