"""Starts redis-server on a free port, with a folder of its own, and a proxy that can be cut."""

import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time

from free_port import free_port

REDIS = shutil.which("redis-server") or "/usr/bin/redis-server"


def installed():
    return os.access(REDIS, os.X_OK)


class RedisServer:
    """One that keeps every write (appendonly, fsync always). kill, then start: a crash."""

    def __init__(self, *flags):
        self.port, self.folder, self.flags = free_port(), tempfile.mkdtemp(), flags
        self.process = None
        self.start()

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"

    def listening(self):
        return "--port", str(self.port)

    def start(self):
        self.process = subprocess.Popen(
            [REDIS, *self.listening(), "--bind", "127.0.0.1", "--dir", self.folder, "--save", "",
             "--appendonly", "yes", "--appendfsync", "always", *self.flags], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not self.command("PING").startswith((b"+PONG", b"-NOAUTH")):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError("redis-server does not answer")
            time.sleep(0.02)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)

    def command(self, *words):
        """Returns the reply as it comes, or b"" without one."""
        try:
            with self.connect() as one:
                one.sendall((" ".join(words) + "\r\n").encode())
                return one.recv(1 << 16)
        except OSError:
            return b""

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        shutil.rmtree(self.folder)


class Proxy:
    """Passes connections on to a port. cut(True): nothing comes through until cut(False)."""

    def __init__(self, to_port):
        self.to_port, self.open, self.ended = to_port, threading.Event(), False
        self.open.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"

    def cut(self, cut):
        self.open.clear() if cut else self.open.set()

    def _accept(self):
        while not self.ended:
            try:
                client = self.listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self.to_port))
            except OSError:
                continue
            for one, other in ((client, server), (server, client)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, source, to):
        try:
            while data := source.recv(1 << 16):
                self.open.wait()
                to.sendall(data)
        except OSError:
            pass
        for one in (source, to):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        source.close()  # the other one is the other thread's

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended = True
        self.open.set()
        self.listener.close()
