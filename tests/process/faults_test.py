"""The real ovq-server under faults: batches that hang, clients that ignore their connection, a log
that nobody reads.

usage: faults_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

try:
    import grpc
except ImportError as error:
    print(f"SKIPPED: {error}; install python3-grpcio")
    sys.exit(0)
for tool in ("protoc", "grpc_python_plugin"):
    if shutil.which(tool) is None:
        print(f"SKIPPED: no {tool}; install what deploy/packages.txt lists")
        sys.exit(0)

from free_port import free_port
from server_process import ROOT, ServerProcess, load_stubs, wait_for
from tiny_model import write_tiny_model

sys.path.insert(0, os.path.join(ROOT, "clients", "python"))
from ovq_client import Client, OvqError

BINARY = FOLDER = None


def setUpModule():
    global FOLDER
    FOLDER = tempfile.mkdtemp(prefix="ovq_faults_test_")
    write_tiny_model(path("tiny"))
    os.mkdir(path("stubs"))
    load_stubs(path("stubs"))


def tearDownModule():
    shutil.rmtree(FOLDER)


def path(name):
    return os.path.join(FOLDER, name)


def metric(page, name):
    return float(re.search(rf"^{name}(?:{{.*?}})? (\S+)$", page, re.MULTILINE).group(1))


def health(channel, timeout=5):
    """Returns the status of a health check: 1 serving, 2 not serving."""
    check = channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=bytes,
                                response_deserializer=lambda answer: answer[-1])
    return check(b"", timeout=timeout)


class ServiceManager:
    """Plays systemd: a notification socket, and the messages that it received."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.address = path("notify")
        self.socket.bind(self.address)
        self.socket.settimeout(20)

    def environment(self):
        return {"NOTIFY_SOCKET": self.address, "WATCHDOG_USEC": "600000"}

    def next(self):
        return self.socket.recv(4096).decode()

    def drain(self):
        """Returns all messages received so far."""
        self.socket.setblocking(False)
        came = []
        try:
            while True:
                came.append(self.next())
        except BlockingIOError:
            self.socket.settimeout(20)
        return came

    def close(self):
        self.socket.close()
        os.unlink(self.address)


class FrozenEngine:
    """Stops the engine's thread like a debugger does, while the other threads run. The thread
    continues at the end of the block, if the process still exists.

    stands: raises grpc.RpcError, AssertionError or OSError if the thread was not stopped as in a
    batch that hangs. It may have stopped while it held a lock that others need, or before an iteration
    had planned its batch; then it is stopped again, at another point, up to five times in all."""

    ATTACH, DETACH, ALL_THREADS = 16, 17, 0x40000000  # of sys/ptrace.h, __WALL of waitpid(2)

    def __init__(self, server, stands=lambda: None):
        self.stands = stands
        tasks = f"/proc/{server.process.pid}/task"

        def name(tid):
            try:
                with open(f"{tasks}/{tid}/comm") as file:
                    return file.read().strip()
            except OSError:
                return None  # the thread has ended meanwhile
        (self.tid,) = (int(tid) for tid in os.listdir(tasks) if name(tid) == "engine")
        self.ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        self.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

    def __enter__(self):
        for tries_left in reversed(range(5)):
            if self.ptrace(self.ATTACH, self.tid, None, None) != 0:
                raise unittest.SkipTest(f"no ptrace here: {os.strerror(ctypes.get_errno())}")
            os.waitpid(self.tid, self.ALL_THREADS)
            try:
                self.stands()
                return self
            except (grpc.RpcError, AssertionError, OSError):
                self.__exit__()
                if not tries_left:
                    raise
                time.sleep(1)  # time for all others to notice that it continues

    def wait_for_end(self):
        """Reaps the process: otherwise it would not end before its debugger."""
        os.waitpid(self.tid, self.ALL_THREADS)

    def __exit__(self, *_):
        self.ptrace(self.DETACH, self.tid, None, None)


class HangingStep(unittest.TestCase):
    FLAGS = ("--state-memory", "64M", "--threads", "1", "--step-timeout", "1s")

    def generate(self, server):
        """Streams an answer that goes on until the server ends."""
        began = threading.Event()

        def run():
            with Client(server.address) as client:
                try:
                    for _ in client.generate("hello", max_tokens=100_000_000):
                        began.set()
                except OvqError:
                    pass
        thread = threading.Thread(target=run)
        thread.start()
        self.addCleanup(thread.join)
        self.assertTrue(began.wait(20))
        time.sleep(0.5)

    def test_it_is_told_until_it_ends(self):
        manager = ServiceManager()
        self.addCleanup(manager.close)
        with ServerProcess(BINARY, path("tiny"), *self.FLAGS, "--drain-timeout", "100ms",
                           env=manager.environment()) as server:
            self.assertIn("READY=1", [manager.next(), manager.next()])
            self.assertEqual(manager.next(), "WATCHDOG=1")
            with grpc.insecure_channel(server.address) as channel:
                self.assertEqual(health(channel), 1)
                self.assertEqual(metric(server.metrics(), "ovq_ready"), 1)
                self.generate(server)
                self.assertEqual(health(channel), 1)

                def told():
                    return re.findall(r"step \d+ has taken [\d.]+s, longer than --step-timeout: "
                                      r"(\d) answers, 0 prompts with 0 tokens to read", server.stderr())

                def stands():
                    before = len(told())
                    self.assertEqual(health(channel, timeout=0.5), 1)
                    wait_for(lambda: health(channel, timeout=0.5) == 2 and len(told()) > before)
                    self.assertEqual(told()[before:], ["1"])
                    server.metrics()

                with FrozenEngine(server, stands):
                    manager.drain()
                    page = server.metrics()
                    self.assertEqual(metric(page, "ovq_ready"), 0)
                    self.assertEqual(metric(page, "ovq_step_timeouts_total"), len(told()))
                    time.sleep(1)
                    self.assertEqual(manager.drain(), [])
                wait_for(lambda: health(channel) == 1)
                self.assertEqual(manager.next(), "WATCHDOG=1")
                page = server.metrics()
                self.assertEqual(metric(page, "ovq_ready"), 1)
                self.assertEqual(metric(page, "ovq_step_timeouts_total"), len(told()))
            server.terminate()
            self.assertEqual(server.wait(), 0)
            self.assertIn("STOPPING=1", manager.drain())

    def test_a_drain_ends_in_its_time(self):
        with ServerProcess(BINARY, path("tiny"), *self.FLAGS, "--drain-timeout", "500ms") as server:
            self.generate(server)
            with FrozenEngine(server) as engine:
                server.terminate()
                engine.wait_for_end()
                self.assertEqual(server.wait(20), 1)
            self.assertIn("drain: the server hangs", server.stderr())


class IdleClients(unittest.TestCase):
    # A client whose thread that would answer pings sleeps, as in every idle client of this library.
    PROGRAM = """
import grpc, sys, time
channels = [grpc.insecure_channel(sys.argv[1]) for _ in range(3)]
for channel in channels:
    grpc.channel_ready_future(channel).result(timeout=20)
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    check(b"", timeout=20)
print("connected", flush=True)
time.sleep(100)
"""

    def test_they_do_not_hold_up_the_end(self):
        with ServerProcess(BINARY, path("tiny"), "--state-memory", "64M") as server:
            clients = [subprocess.Popen([sys.executable, "-c", self.PROGRAM, server.address],
                                        stdout=subprocess.PIPE, text=True) for _ in range(3)]
            try:
                for client in clients:
                    self.assertEqual(client.stdout.readline(), "connected\n")
                began = time.monotonic()
                server.terminate()
                self.assertEqual(server.wait(), 0)
                self.assertLess(time.monotonic() - began, 10)  # the library would wait for 20
            finally:
                for client in clients:
                    client.kill()
                    client.wait()
                    client.stdout.close()


class LostLog(unittest.TestCase):
    def serve(self, redirection):
        """Starts a server with redirected log and standard output; returns its address and the
        metrics' URL."""
        command = ('exec "$0" --model "$1" --state-memory 64M --listen "$2" --metrics-address "$3" '
                   f"--log-level debug {redirection}")
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        process = subprocess.Popen(["/bin/sh", "-c", command, BINARY, path("tiny"), *addresses])

        def end():
            process.kill()
            process.wait()
        self.addCleanup(end)
        with grpc.insecure_channel(addresses[0]) as channel:
            grpc.channel_ready_future(channel).result(timeout=30)
        return process, addresses[0], f"http://{addresses[1]}/metrics"

    def test_the_server_lives(self):
        fifo = path("nobody")
        os.mkfifo(fifo)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        for redirection in ("2>/dev/full >/dev/full", "2>&- >&- <&-", f"2>{fifo} >{fifo}"):
            with self.subTest(redirection):
                process, address, url = self.serve(redirection)
                if fifo in redirection:
                    os.close(reader)  # from now on writes to the pipe raise SIGPIPE
                process.send_signal(signal.SIGPIPE)
                with Client(address) as client:
                    for _ in range(20):
                        self.assertGreater(len(list(client.generate("hello", max_tokens=5))), 2)

                def lost():
                    with urllib.request.urlopen(url, timeout=10) as response:
                        page = response.read().decode()
                    return int(re.search(
                        r'ovq_log_lines_suppressed_total{reason="lost"} (\d+)', page).group(1))
                wait_for(lambda: lost() >= 20)
                self.assertIsNone(process.poll())
                process.terminate()
                self.assertEqual(process.wait(30), 0)


def main():
    global BINARY
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    arguments, rest = parser.parse_known_args()
    BINARY = os.path.join(arguments.build, "bin", "ovq-server")
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
