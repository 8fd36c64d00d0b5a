"""Runs a program under a time limit, including all processes that it starts."""

import os
import signal
import subprocess
import tempfile
import time

TIME_LIMIT, SILENT = "time limit", "no output"


class Finished:
    """How a program ended: its exit code, or a negative signal, or None if it was stopped."""

    def __init__(self, code, stopped, output, seconds):
        self.code, self.output, self.seconds = code, output, seconds
        self.ended = stopped or (f"signal {-code}" if code < 0 else f"exit {code}")


def wait(process, output, limit, silence):
    """The exit code, or None and why the program is to be stopped."""
    begin = last_output = time.monotonic()
    size = 0
    while True:
        try:
            return process.wait(timeout=0.1), None
        except subprocess.TimeoutExpired:
            now = time.monotonic()
        if os.fstat(output.fileno()).st_size != size:
            size, last_output = os.fstat(output.fileno()).st_size, now
        if now - begin > limit:
            return None, TIME_LIMIT
        if silence is not None and now - last_output > silence:
            return None, SILENT


def run(command, limit, env, cwd, silence=None):
    """Runs a program in a process group of its own, which does not outlive the limit, nor `silence`
    seconds without output."""
    begin = time.monotonic()
    with tempfile.TemporaryFile(mode="w+", errors="replace") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=env,
                                   cwd=cwd, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            code, stopped = wait(process, output, limit, silence)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        output.seek(0)
        return Finished(code, stopped, output.read(), time.monotonic() - begin)
