"""Starts ovq-server on free ports and ends it; generates stubs from the proto."""

import importlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def load_stubs(folder):
    """Returns (messages, services) of ovq.v1's inference.proto; generates the stubs of all protos
    into the folder, where they are not there yet, from which they can be imported."""
    proto = os.path.join(ROOT, "proto")
    plugin = shutil.which("grpc_python_plugin")
    # Uses the system's protoc: the one inside Debian 12's grpc_tools does not know proto3
    # `optional`.
    if not os.path.exists(os.path.join(folder, "ovq")):
        subprocess.run(["protoc", f"-I{proto}", f"--python_out={folder}", f"--grpc_out={folder}",
                        f"--plugin=protoc-gen-grpc={plugin}", "ovq/v1/inference.proto",
                        "ovq/v1/admin.proto"], check=True)
    sys.path.insert(0, folder)
    return (importlib.import_module("ovq.v1.inference_pb2"),
            importlib.import_module("ovq.v1.inference_pb2_grpc"))


class ServerProcess:
    """with ServerProcess(binary, model, "--flag", ...) as server: ..."""

    def __init__(self, binary, model, *flags, port=0, env=None):
        self._stderr = tempfile.TemporaryFile()
        arguments = [binary, "--model", model, "--listen", f"127.0.0.1:{port}",
                     "--metrics-address", "127.0.0.1:0", *flags]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=self._stderr,
                                        text=True, env={**os.environ, **(env or {})})
        try:
            self.port = self._await_port(timeout=60)
        except BaseException:
            self.kill()
            raise

    def _await_port(self, timeout):
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        line = self.process.stdout.readline() if ready else ""
        match = re.fullmatch(r"listening on 127\.0\.0\.1:(\d+)\n", line)
        if match is None:
            raise RuntimeError(f"not ready: {line!r}; {self.stderr()}")
        return int(match.group(1))

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def stderr(self):
        # The server writes at the file's shared offset, which must not move under it.
        file = self._stderr.fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")

    def metrics_url(self):
        return re.search(r"metrics on (http://[^\s\"]+)", self.stderr()).group(1)

    def metrics(self):
        """Returns the current metrics page."""
        with urllib.request.urlopen(self.metrics_url(), timeout=10) as response:
            return response.read().decode()

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(re.search(r"VmRSS:\s+(\d+) kB", file.read()).group(1)) * 1024

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout=60):
        return self.process.wait(timeout)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self._stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


def wait_for(condition, what="the condition", seconds=30):
    """Waits until condition() holds; `what` says what did not come if it never does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"did not come in {seconds} s: {what}")
        time.sleep(0.02)


def run_to_end(binary, *arguments, env=None):
    """Returns (exit code, stdout, stderr) of a server that is expected not to start."""
    started = time.monotonic()
    result = subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=60,
                            env={**os.environ, **(env or {})})
    assert time.monotonic() - started < 60
    return result.returncode, result.stdout, result.stderr
