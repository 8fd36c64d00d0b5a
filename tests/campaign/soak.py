#!/usr/bin/python3
"""Soak test: hours of ordinary load, including all kinds of calls that end badly.

A real server with tenants, whose capacity is measured first and again now and then, as what else runs on the
machine changes it; calls come at 80% of it: answers that
are read, cancelled, read slowly or given a short deadline, scores, sessions that get turns, are forked,
rewound, exported, imported, deleted or left to their --session-ttl. The tenants file is changed and read
again (SIGHUP) every 10 s. Prints resident memory, descriptors and threads, at the end a table; ends with 1
if a requirement is missed:

    resident memory after the first quarter grows by less than 1 MiB an hour, descriptors and threads do
    not grow, no call ends with INTERNAL or UNKNOWN, what the metrics count as held is 0 at the end, and
    SIGTERM ends the server with 0.

The slope's standard error is printed: a short run says little about an hour.

usage: soak.py [--hours H] [--every SECONDS] [--measure SECONDS] [--build FOLDER] [--model FOLDER]
"""

import argparse
import collections
import concurrent.futures
import hashlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time

import grpc

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "process"))

from server_process import ServerProcess, load_stubs

TENANTS = ["alice", "bob", "carol"]
ANSWER = 100  # tokens
LOAD = 0.8  # of the capacity
WORKERS = 48
TTL = 20  # s, for abandoned sessions
MOST_MIB_AN_HOUR = 1.0
HELD = ("ovq_requests_running", "ovq_requests_waiting", "ovq_requests_blocked", "ovq_sessions",
        "ovq_waiting_prompt_tokens", "ovq_session_slots_used", "ovq_session_history_bytes",
        'ovq_session_state_bytes{kind="reserved"}', 'ovq_session_state_bytes{kind="committed"}',
        'ovq_request_memory_bytes{kind="held"}')


def write_tenants(path, rng):
    tenants = [{"name": name, "token_sha256": [hashlib.sha256(token(name).encode()).hexdigest()],
                "weight": rng.choice([0.5, 1, 2])} for name in TENANTS]
    with open(path + ".new", "w") as file:
        json.dump({"tenants": tenants}, file)
    os.replace(path + ".new", path)


def token(name):
    return f"{name}-token-of-the-soak-0123456789"


class Client:
    """Calls of one tenant; any thread."""

    def __init__(self, address, name, pb, rpc):
        self.pb = pb
        channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self.inference, self.sessions = rpc.InferenceServiceStub(channel), rpc.SessionServiceStub(channel)
        self.metadata = (("authorization", f"Bearer {token(name)}"),)

    def stream(self, rng, timeout=60, **fields):
        request = self.pb.GenerateRequest(**fields)
        request.prompt.token_ids.ids.extend(rng.randrange(256) for _ in range(rng.randrange(1, 200)))
        request.stop.max_tokens = ANSWER
        request.stop.ignore_eos = True
        return self.inference.Generate(request, metadata=self.metadata, timeout=timeout)

    def answer(self, rng, **fields):
        return sum(len(event.chunk.token_ids) for event in self.stream(rng, **fields) if event.HasField("chunk"))

    def cancelled(self, rng):
        call = self.stream(rng)
        for _ in range(rng.randrange(1, 20)):
            next(call, None)
        call.cancel()

    def slow(self, rng):
        for i, _ in enumerate(self.stream(rng)):
            if i < 5:
                time.sleep(0.3)

    def late(self, rng):
        for _ in self.stream(rng, timeout=rng.uniform(0.001, 0.1)):
            pass

    def score(self, rng):
        request = self.pb.ScoreRequest(top_logprobs=2)
        request.prompt.token_ids.ids.extend(rng.randrange(256) for _ in range(100))
        self.inference.Score(request, metadata=self.metadata, timeout=60)

    def session(self, rng):
        pb, call = self.pb, {"metadata": self.metadata, "timeout": 60}
        made = self.sessions.CreateSession(pb.CreateSessionRequest(), **call).session_id
        self.answer(rng, session_id=made)
        forked = self.sessions.ForkSession(pb.ForkSessionRequest(session_id=made, count=2), **call).sessions
        self.sessions.RewindSession(pb.RewindSessionRequest(session_id=made, position=rng.randrange(50)), **call)
        self.answer(rng, session_id=forked[0].session_id)
        file = b"".join(part.data for part in self.sessions.ExportSession(
            pb.ExportSessionRequest(session_id=forked[0].session_id), **call))
        taken = self.sessions.ImportSession(iter([pb.SessionBytes(data=file)]), **call)
        for session_id in (made, forked[0].session_id, taken.session_id):
            self.sessions.DeleteSession(pb.DeleteSessionRequest(session_id=session_id), **call)
        # The other fork is left to expire.


CALLS = [(Client.answer, 12), (Client.cancelled, 3), (Client.slow, 1), (Client.late, 3), (Client.score, 2),
         (Client.session, 2)]


def mib(count):
    return count / (1 << 20)


def slope_of(samples):
    """(MiB an hour, its standard error) of (s, bytes)."""
    if len(samples) < 4:
        raise RuntimeError("too short for a slope: --hours, --every, --measure")
    hours, sizes = [seconds / 3600 for seconds, _ in samples], [mib(count) for _, count in samples]
    fit = statistics.linear_regression(hours, sizes)
    rest = sum((y - fit.slope * x - fit.intercept) ** 2 for x, y in zip(hours, sizes))
    spread = sum((x - statistics.mean(hours)) ** 2 for x in hours)
    return fit.slope, (rest / (len(samples) - 2) / spread) ** 0.5


class Soak:
    def __init__(self, args, folder):
        self.args, self.folder, self.rng = args, folder, random.Random(1)
        self.tenants = os.path.join(folder, "tenants.json")
        write_tenants(self.tenants, self.rng)
        self.server = ServerProcess(os.path.join(args.build, "bin", "ovq-server"), args.model,
                                    "--tenants", self.tenants, "--session-ttl", f"{TTL}s", "--log-requests", "none")
        pb, rpc = load_stubs(folder)
        self.clients = [Client(self.server.address, name, pb, rpc) for name in TENANTS]
        self.codes, self.lock = collections.Counter(), threading.Lock()
        self.sent, self.ended = 0, 0
        self.samples = []  # (s, resident bytes, the same without states, descriptors, threads)
        self.at_rest = []  # (s, resident bytes)

    def one(self, call, seed):
        rng = random.Random(seed)
        try:
            call(rng.choice(self.clients), rng)
            code = "OK"
        except grpc.RpcError as error:
            code = error.code().name
            if code in ("INTERNAL", "UNKNOWN"):
                print(f"  {call.__name__}: {code} {error.details()}", flush=True)
        with self.lock:
            self.codes[f"{call.__name__} {code}"] += 1
        return code

    def capacity(self, pool, seconds=15):
        """Completed plain answers a second, 16 at a time."""
        end, done = time.monotonic() + seconds, []

        def loop(seed):
            rng = random.Random(seed)
            while time.monotonic() < end:
                if self.one(Client.answer, rng.random()) == "OK":
                    done.append(1)
        begin = time.monotonic()
        list(pool.map(loop, range(16)))
        capacity = max(len(done), 1) / (time.monotonic() - begin)
        print(f"{LOAD * capacity:.2f} calls a second", flush=True)
        return capacity

    def send(self, pool, call):
        """Skips the call while the server is far behind, as after a pause of the whole machine."""
        if self.sent - self.ended >= 2 * WORKERS:
            with self.lock:
                self.codes["not sent"] += 1
            return
        self.sent += 1

        def run(seed):
            self.one(call, seed)
            with self.lock:
                self.ended += 1
        pool.submit(run, self.sent)

    def rest(self, begin):
        """Waits for the end of all calls and sessions."""
        while self.ended < self.sent:
            time.sleep(0.1)
        time.sleep(TTL + 5)
        self.at_rest.append((time.monotonic() - begin, self.server.resident_bytes()))
        print(f"{self.at_rest[-1][0]:8.0f} s  {mib(self.at_rest[-1][1]):8.2f} MiB at rest", flush=True)

    def sample(self, begin):
        process = f"/proc/{self.server.process.pid}"
        try:
            page = self.metrics()
        except OSError as error:  # the machine was busy with something else for 10 s
            print(f"  no metrics: {error}", flush=True)
            return
        resident = self.server.resident_bytes()
        states = sum(value for key, value in page if key.startswith("ovq_session_history_bytes{")
                     or (key.startswith("ovq_session_state_bytes{") and 'kind="committed"' in key))
        self.samples.append((time.monotonic() - begin, resident, resident - states,
                             len(os.listdir(process + "/fd")), len(os.listdir(process + "/task"))))
        seconds, _, without, descriptors, threads = self.samples[-1]
        print(f"{seconds:8.0f} s  {mib(resident):8.2f} MiB  {mib(without):8.2f} without states  "
              f"{descriptors} descriptors  {threads} threads", flush=True)

    def run(self):
        kinds, weights = zip(*CALLS)
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            begin = time.monotonic()
            end = begin + self.args.hours * 3600
            next_measure, next_sample, next_reload = begin, begin + self.args.every, begin + 10
            while (now := time.monotonic()) < end:
                if now >= next_measure:
                    self.rest(begin)
                    rate, now = LOAD * self.capacity(pool), time.monotonic()
                    next_measure, next_call = now + self.args.measure, now
                if now >= next_call:
                    next_call = max(next_call, now - 1) + self.rng.expovariate(rate)
                    self.send(pool, self.rng.choices(kinds, weights)[0])
                if now >= next_sample:
                    next_sample = now + self.args.every
                    self.sample(begin)
                if now >= next_reload:
                    next_reload = now + 10
                    write_tenants(self.tenants, self.rng)
                    self.server.process.send_signal(signal.SIGHUP)
                time.sleep(max(0, min(next_call, next_sample, next_reload) - time.monotonic()))
        time.sleep(TTL + 15)

    def metrics(self):
        """[(name and labels, value)]"""
        page = [line.rsplit(" ", 1) for line in self.server.metrics().splitlines() if not line.startswith("#")]
        return [(key, float(value)) for key, value in page]

    def held(self):
        page, left = self.metrics(), {}
        for wanted in HELD:
            name, _, label = wanted.partition("{")
            found = [value for key, value in page
                     if key.partition("{")[0] == name and label.rstrip("}") in key]
            if not found:
                raise RuntimeError(f"{wanted} is not among the metrics")
            if sum(found) != 0:
                left[wanted] = sum(found)
        return left

    def judge(self):
        quarter = self.args.hours * 900
        later = [sample for sample in self.samples if sample[0] >= quarter]
        half = len(later) // 2

        def grows(i):  # beyond the maximum of the first half
            return max(s[i] for s in later[half:]) - max(s[i] for s in later[:half])

        def slope_row(what, samples):
            slope, error = slope_of(samples)
            return (f"{what}, MiB an hour", f"{slope:+.2f} ± {error:.2f}", slope - 2 * error < MOST_MIB_AN_HOUR)
        bad = {what: n for what, n in self.codes.items() if what.endswith((" INTERNAL", " UNKNOWN"))}
        left = self.held()
        self.server.terminate()
        status = self.server.wait(60)
        rows = [
            slope_row("resident memory", [(s[0], s[1]) for s in later]),
            slope_row("without states", [(s[0], s[2]) for s in later]),
            slope_row("at rest", [s for s in self.at_rest if s[0] >= quarter]),
            ("descriptors, more in the second half", grows(3), grows(3) <= 0),
            ("threads, likewise", grows(4), grows(4) <= 0),
            ("INTERNAL or UNKNOWN", bad or 0, not bad),
            ("held at the end", left or 0, not left),
            ("SIGTERM: status", status, status == 0),
        ]
        print("\n| | | |\n|---|---:|---|")
        for what, value, ok in rows:
            print(f"| {what} | {value} | {'ok' if ok else 'MISSED'} |")
        print("\n" + ", ".join(f"{what} {n}" for what, n in sorted(self.codes.items())))
        return all(ok for *_, ok in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2)
    parser.add_argument("--every", type=float, default=10, help="seconds between two samples")
    parser.add_argument("--measure", type=float, default=600, help="seconds between two measurements of the capacity")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "cpu"))
    parser.add_argument("--model", default=os.path.join(ROOT, "models", "python-bytes"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(args, folder)
        try:
            soak.run()
            return 0 if soak.judge() else 1
        finally:
            soak.server.kill()


if __name__ == "__main__":
    sys.exit(main())
