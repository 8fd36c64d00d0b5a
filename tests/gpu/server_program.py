"""Starts ovq-server on free ports of this machine: gRPC, HTTP and metrics."""

import re
import select
import subprocess
import tempfile
import urllib.request

SECONDS = 60  # to start, to answer


class Server:
    def __init__(self, program, model, device, *flags):
        self.log = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(
            [program, "--model", model, "--device", device, "--listen", "127.0.0.1:0",
             "--http-listen", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0", *flags],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        ready, _, _ = select.select([self.process.stdout], [], [], SECONDS)
        line = self.process.stdout.readline() if ready else ""
        found = re.fullmatch(r"listening on (\S+)\n", line)
        if found is None:
            log = self.text()
            self.close()
            raise AssertionError(f"{device}: not ready: {line!r}; {log}")
        self.address = found.group(1)

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def url(self, of):
        """The address of "http" or "metrics" in the log."""
        return re.search(of + r" on (http://[^\s\"]+)", self.text()).group(1)

    def metrics(self):
        with urllib.request.urlopen(self.url("metrics"), timeout=SECONDS) as page:
            return page.read().decode()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
