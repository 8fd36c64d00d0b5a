"""Runs HAProxy with a file of deploy/, in which the test's addresses replace the shipped ones."""

import os
import re
import socket
import subprocess
import time

from free_port import free_port

os.environ["PATH"] += ":/usr/sbin"


class HaproxyProcess:
    """with HaproxyProcess(config, folder, {pattern: replacement, ...}) as proxy: ..."""

    def __init__(self, config, folder, replacements):
        self.port = free_port()
        self.socket = os.path.join(folder, "admin.sock")
        with open(config) as file:
            text = file.read()
        for pattern, replacement in {r"^    bind :\d+": f"    bind 127.0.0.1:{self.port}",
                                     **replacements}.items():
            text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
            assert count == 1, f"{config}: {pattern!r} found {count} times"
        self._config = os.path.join(folder, "haproxy.cfg")
        with open(self._config, "w") as file:
            file.write(text)
        self._process = subprocess.Popen(["haproxy", "-f", self._config, "-db"],
                                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL)

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def admin(self, command):
        """Returns the answer of the admin socket that deploy/haproxy/haproxy.cfg opens."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(self.socket)
            connection.sendall(command.encode() + b"\n")
            answer = b""
            while part := connection.recv(65536):
                answer += part
        return answer.decode()

    def status(self, server):
        """Returns "UP", "DOWN", "DRAIN", ...; followed by a count while checks disagree."""
        header, *rows = self.admin("show stat").strip("# \n").splitlines()
        columns = header.split(",")
        for row in rows:
            fields = dict(zip(columns, row.split(",")))
            if fields["svname"] == server:
                return fields["status"]
        raise KeyError(server)

    def await_status(self, server, status, seconds=20):
        end = time.monotonic() + seconds
        while not os.path.exists(self.socket) or self.status(server) != status:
            if time.monotonic() > end or self._process.poll() is not None:
                raise AssertionError(f"{server} did not become {status}")
            time.sleep(0.05)

    def kill(self):
        self._process.kill()
        self._process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


def proxy_of_a_pair(folder, first, second, changes={}):
    """Runs deploy/haproxy/haproxy.cfg with these two addresses and changes; returns once both
    servers are up."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    proxy = HaproxyProcess(os.path.join(root, "deploy", "haproxy", "haproxy.cfg"), folder, {
        r"^    user haproxy\n    group haproxy\n": "",
        r"/run/haproxy/admin\.sock": os.path.join(folder, "admin.sock"),
        r"192\.0\.2\.1:50051": first,
        r"192\.0\.2\.2:50051": second,
        **changes})
    try:
        for name in ("ovq1", "ovq2"):
            proxy.await_status(name, "UP")
    except BaseException:
        proxy.kill()
        raise
    return proxy
