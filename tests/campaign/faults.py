#!/usr/bin/python3
"""Tests a server's behaviour during and after faults of the system under it.

A real server with a session folder and load on it (answers, and sessions that get turns, are forked, read back and
deleted). One fault at a time: calls of the C library that fail (libovq_fail.so, preloaded: memory of 64 KiB
and more, files of sessions, random numbers, the time of day), descriptors or memory taken away (prlimit),
the process stopped, signals. Small allocations never fail, as some libraries cannot handle that. Prints a row for
each fault, and ends with 1 if a requirement is missed:

    calls end with a documented status, the process lives, new calls are served within 5 s of the fault's
    end, and nothing is held once its sessions are gone.

In faults that libraries do not survive (ENDS) the server ends at once and is restarted, as by a supervisor;
its answers after the fault have to meet the same requirements.

usage: faults.py [--fault NAME ...] [--list] [--seconds S] [--build FOLDER] [--model FOLDER]
"""

import argparse
import collections
import errno
import mmap
import os
import resource
import signal
import struct
import sys
import tempfile
import threading
import time

import grpc

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "process"))

from server_process import ServerProcess, load_stubs

# Calls have 10 s, more than a fault takes.
DOCUMENTED = {"OK", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "DATA_LOSS", "CANCELLED", "NOT_FOUND", "FAILED_PRECONDITION"}
AGAIN_WITHIN = 5  # s
MAP, PROTECT, OPEN, WRITE, SYNC, RENAME, RANDOM, ALLOCATE = (1 << i for i in range(8))
HELD = ("ovq_requests_running", "ovq_requests_waiting", "ovq_sessions", "ovq_session_history_bytes")


class Bench:
    def __init__(self, args, folder):
        self.args = args
        self.pb, self.rpc = load_stubs(folder)
        control = os.path.join(folder, "control")
        with open(control, "wb") as file:
            file.write(bytes(24))
        with open(control, "r+b") as file:
            self.control = mmap.mmap(file.fileno(), 24)
        self.folder = folder
        self.start()

    def start(self):
        library = os.path.join(self.args.build, "bin", "libovq_fail.so")
        self.server = ServerProcess(
            os.path.join(self.args.build, "bin", "ovq-server"), self.args.model,
            "--session-dir", os.path.join(self.folder, "ovq-faults"), "--session-ttl", "30s", "--log-requests", "none",
            env={**os.environ, "LD_PRELOAD": library, "OVQ_FAULTS": os.path.join(self.folder, "control")})

    def fail(self, what, error=0, every=1, clock=0):
        self.control[:] = struct.pack("6i", 0, error, every, clock, 0, 0)  # what: last
        self.control[:4] = struct.pack("i", what)

    def failed(self):
        return struct.unpack("6i", self.control[:])[5]

    # --- load ---

    def stubs(self):
        channel = grpc.insecure_channel(self.server.address, [("grpc.use_local_subchannel_pool", 1)])
        return self.rpc.InferenceServiceStub(channel), self.rpc.SessionServiceStub(channel)

    def request(self, **session):
        request = self.pb.GenerateRequest(**session)
        request.prompt.text = "def main():\n" * 20
        request.stop.max_tokens = 50
        request.stop.ignore_eos = True
        return request

    def answers(self, inference, _):
        for _ in inference.Generate(self.request(), timeout=10):
            pass

    def talks(self, inference, sessions):
        made = sessions.CreateSession(self.pb.CreateSessionRequest(), timeout=10).session_id
        try:
            for _ in inference.Generate(self.request(session_id=made), timeout=10):
                pass
            forked = sessions.ForkSession(self.pb.ForkSessionRequest(session_id=made, count=1), timeout=10)
            for _ in sessions.ExportSession(self.pb.ExportSessionRequest(session_id=made), timeout=10):
                pass
            sessions.DeleteSession(
                self.pb.DeleteSessionRequest(session_id=forked.sessions[0].session_id), timeout=10)
        finally:
            sessions.DeleteSession(self.pb.DeleteSessionRequest(session_id=made), timeout=10)

    def load(self, calls, codes, stop):
        stubs = self.stubs()
        while not stop.is_set():
            try:
                calls(*stubs)
                codes["OK"] += 1
            except grpc.RpcError as error:
                codes[error.code().name] += 1
                if error.code() == grpc.StatusCode.UNAVAILABLE:
                    stubs = self.stubs()  # of the server that is there now
                if error.code().name not in DOCUMENTED:
                    print(f"  {calls.__name__}: {error.code().name} {error.details()}", flush=True)
                time.sleep(0.02)

    # --- one fault ---

    def supervise(self):
        """Restarts the server if it has ended, as soon as it can start."""
        while self.server.process.poll() is not None:
            self.ended += 1
            self.said = self.server.stderr().splitlines()[-1:]
            self.server.kill()
            try:
                self.start()
            except (RuntimeError, AssertionError):
                time.sleep(0.1)

    def wait(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.server.process.poll() is not None:
                self.fail(0)  # if it cannot start either, the supervisor waits for the fault's end
            self.supervise()
            time.sleep(0.05)

    def serves(self):
        """Seconds until everything works, infinite if it never does."""
        begin = time.monotonic()
        while time.monotonic() - begin < 2 * AGAIN_WITHIN:
            self.supervise()
            try:
                stubs = self.stubs()
                self.answers(*stubs)
                self.talks(*stubs)
                return time.monotonic() - begin
            except grpc.RpcError as error:
                last = error
                time.sleep(0.05)
        print(f"  {last.code().name} {last.details()}", flush=True)
        return float("inf")

    def held(self):
        """Resources held according to the metrics, once the sessions that calls left behind are gone."""
        sessions = self.stubs()[1]
        for _ in range(50):
            for session in sessions.ListSessions(self.pb.ListSessionsRequest(page_size=1000), timeout=10).sessions:
                try:
                    sessions.DeleteSession(self.pb.DeleteSessionRequest(session_id=session.session_id), timeout=10)
                except grpc.RpcError:
                    pass
            left = {}
            for line in self.server.metrics().splitlines():
                name = line.partition("{")[0]
                counts = name in HELD or (name == "ovq_session_state_bytes" and 'kind="budget"' not in line)
                if counts and float(line.rsplit(" ", 1)[1]) != 0:
                    left[line.rsplit(" ", 1)[0]] = float(line.rsplit(" ", 1)[1])
            if not left:
                break
            time.sleep(0.1)
        return left

    def run(self, name):
        if self.serves() > AGAIN_WITHIN:
            raise RuntimeError("it does not serve to begin with")
        codes, stop = collections.Counter(), threading.Event()
        self.ended, self.said = 0, []
        threads = [threading.Thread(target=self.load, args=(calls, codes, stop), daemon=True)
                   for calls in (self.answers, self.answers, self.talks, self.talks)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        FAULTS[name](self)
        failed = self.failed()
        self.fail(0)
        again = self.serves()
        stop.set()
        for thread in threads:
            thread.join(30)
        left = self.held()
        others = {code for code in codes if code not in DOCUMENTED}
        ok = again <= AGAIN_WITHIN and not left and not others and (not self.ended or name in ENDS)
        told = ", ".join(f"{code} {n}" for code, n in codes.most_common())
        print(f"| {name} | {failed or ''} | {told} | {again:.2f} s | {left or 'nothing'} | "
              f"{self.ended or ''} | {'ok' if ok else 'MISSED'} |", flush=True)
        for line in self.said:
            print(f"  it ended: {line}")
        return ok


def calls_fail(what, error, every=1):
    def fault(bench):
        bench.fail(what, error, every)
        bench.wait(bench.args.seconds)
    return fault


def clock(seconds):
    def fault(bench):
        bench.fail(0, clock=seconds)
        time.sleep(bench.args.seconds)
    return fault


def limit(what, left):
    def fault(bench):
        pid = bench.server.process.pid
        before = resource.prlimit(pid, what)
        resource.prlimit(pid, what, (left(pid), before[1]))
        time.sleep(bench.args.seconds)
        resource.prlimit(pid, what, before)
    return fault


def data_bytes(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:"))


def stopped(bench):
    bench.server.process.send_signal(signal.SIGSTOP)
    time.sleep(bench.args.seconds)
    bench.server.process.send_signal(signal.SIGCONT)


def signals(bench):
    end = time.monotonic() + bench.args.seconds
    while time.monotonic() < end:
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE):
            bench.server.process.send_signal(number)
        time.sleep(0.01)


FAULTS = {
    "memory is not mapped": calls_fail(MAP, errno.ENOMEM),
    "every third is not": calls_fail(MAP, errno.ENOMEM, 3),
    "memory is not made writable": calls_fail(PROTECT, errno.ENOMEM),
    "every third is not made so": calls_fail(PROTECT, errno.ENOMEM, 3),
    "allocations of 64 KiB and more": calls_fail(ALLOCATE, errno.ENOMEM, 5),
    "files of sessions cannot be opened": calls_fail(OPEN, errno.EACCES),
    "the disk is full": calls_fail(WRITE, errno.ENOSPC),
    "every third write fails": calls_fail(WRITE, errno.EIO, 3),
    "what is written is not kept": calls_fail(SYNC, errno.EIO, 3),
    "files are not renamed": calls_fail(RENAME, errno.EROFS),
    "no random numbers": calls_fail(RANDOM, errno.ENOSYS),
    "the clock an hour ahead": clock(3600),
    "the clock a day behind": clock(-86400),
    "no descriptors for files": limit(resource.RLIMIT_NOFILE, lambda pid: len(os.listdir(f"/proc/{pid}/fd"))),
    "64 MiB of memory left": limit(resource.RLIMIT_DATA, lambda pid: data_bytes(pid) + (64 << 20)),
    "stopped": stopped,
    "signals": signals,
}


# See docs/security.md: faults that refuse some of the memory that libraries request.
ENDS = {"every third is not", "every third is not made so", "allocations of 64 KiB and more"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", action="append", choices=list(FAULTS), metavar="NAME")
    parser.add_argument("--list", action="store_true", help="names of the faults")
    parser.add_argument("--seconds", type=float, default=3, help="of each fault")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "cpu"))
    parser.add_argument("--model", default=os.path.join(ROOT, "models", "python-bytes"))
    args = parser.parse_args()
    if args.list:
        print("\n".join(FAULTS))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, folder)
        try:
            print("| fault | calls that failed | statuses | serving again | held afterwards | ended | |\n"
                  "|---|---:|---|---:|---|---:|---|", flush=True)
            missed = [name for name in args.fault or FAULTS if not bench.run(name)]
            bench.server.terminate()
            status = bench.server.wait(60)
        finally:
            bench.server.kill()
    print(f"SIGTERM: status {status}")
    print(f"{len(missed)} missed: {', '.join(missed)}" if missed else "all bars are met")
    return 0 if status == 0 and not missed else 1


if __name__ == "__main__":
    sys.exit(main())
