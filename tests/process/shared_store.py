"""Tests of servers that share a store of sessions, for redis_store_test.py and s3_store_test.py: they kill the servers,
stop them for longer than their leases, and restart the store, while sessions are used over gRPC and HTTP. No
acknowledged turn is lost or applied twice, and every session goes on like an undisturbed one.
"""

import argparse
import http.client
import json
import os
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

try:
    import grpc
except ImportError as error:
    print(f"SKIPPED: {error}; install python3-grpcio")
    sys.exit(0)
if shutil.which("protoc") is None:
    print("SKIPPED: no protoc; install protobuf-compiler")
    sys.exit(0)

from free_port import free_port
from haproxy_process import HaproxyProcess
from http_client import HttpClient, events_of, http_port
from redis_process import Proxy
from server_process import ROOT, ServerProcess, run_to_end

sys.path.insert(0, os.path.join(ROOT, "clients", "python"))
from ovq_client import Client, Finished, OvqError, TokenChunk

OPTIONS = None
MODEL = os.path.join(ROOT, "models", "python-bytes")
LEASE = 2  # seconds
SERVES = ("--threads", "1", "--session-ttl", "1h", "--log-requests", "none", "--session-lease", f"{LEASE}s")
FLAGS = (*SERVES, "--http-listen", "127.0.0.1:0")
UNSHARED = (*SERVES[:SERVES.index("--session-lease")], "--http-listen", "127.0.0.1:0")
CENTROIDS = 128
START = "def main():\n"


def binary():
    return os.path.join(OPTIONS.build, "bin", "ovq-server")


def parse_options():
    """Returns the arguments that are unittest's."""
    global OPTIONS
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    OPTIONS, rest = parser.parse_known_args()
    return [sys.argv[0], *rest]


class TurnFailed(Exception):
    """A call that ended without an answer, in a way that allows it to be made again."""


MAY_BE_REPEATED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED,
                   grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.DATA_LOSS)
# The words of gRPC's library for a call whose server's connection ended behind a proxy.
CUT_BY_A_PROXY = "Stream removed|RST_STREAM"


class GrpcCaller:
    """Calls of sessions over gRPC; a new connection for each, as servers come and go."""

    @staticmethod
    def run(server, call):
        try:
            with Client(server.address) as client:
                return call(client)
        except OvqError as error:
            if error.code in MAY_BE_REPEATED or re.search(CUT_BY_A_PROXY, str(error)):
                raise TurnFailed(str(error)) from error
            raise

    def create(self, server):
        session = self.run(server, lambda client: client.create_session(START, max_centroids=CENTROIDS))
        return session.session_id, session.position

    def position(self, server, session_id):
        """Returns (position, whether the store has all of it)."""
        session = self.run(server, lambda client: client.get_session(session_id))
        return session.position, session.durable

    def turn(self, server, session_id, turn, expected):
        """Returns (tokens, position, seconds to the first token)."""
        def call(client):
            begin, first, tokens, position = time.monotonic(), None, [], None
            for event in client.generate(turn["text"], session_id=session_id, max_tokens=turn["n"], seed=turn["seed"],
                                         temperature=1.0, ignore_eos=True, expected_position=expected, timeout=40):
                if isinstance(event, TokenChunk):
                    first = first or time.monotonic() - begin
                    tokens += event.token_ids
                elif isinstance(event, Finished):
                    position = event.usage.position
            return tokens, position, first
        return self.run(server, call)


class HttpCaller:
    """Calls of sessions over HTTP."""

    @staticmethod
    def run(server, method, path, body=None):
        client = HttpClient(server.http_port if isinstance(server, Front) else http_port(server), timeout=40)
        try:
            response = client.send(method, path, body)
            if response.status != 200:
                text = response.read().decode()
                if response.status in (400, 409, 412, 500, 502, 503, 504):
                    raise TurnFailed(text)
                raise AssertionError((response.status, text))
            if "event-stream" in response.headers["Content-Type"]:
                return list(events_of(response)), None
            return json.loads(response.read()), None
        except (OSError, http.client.HTTPException) as error:
            raise TurnFailed(str(error)) from error
        finally:
            client.close()

    def create(self, server):
        session, _ = self.run(server, "POST", "/ovq/v1/sessions", {"prompt": {"text": START}, "maxCentroids": CENTROIDS})
        return session["sessionId"], int(session["position"])

    def position(self, server, session_id):
        session, _ = self.run(server, "GET", f"/ovq/v1/sessions/{session_id}")
        return int(session["position"]), session.get("durable", False)

    def turn(self, server, session_id, turn, expected):
        events, first = self.run(server, "POST", f"/ovq/v1/sessions/{session_id}/generate", {
            "prompt": {"text": turn["text"]}, "sampling": {"seed": str(turn["seed"]), "temperature": 1.0},
            "stop": {"maxTokens": turn["n"], "ignoreEos": True}, "expectedPosition": str(expected)})
        tokens = [token for event in events for token in event.get("chunk", {}).get("tokenIds", [])]
        ends = [event["finished"] for event in events if "finished" in event]
        if not ends:
            raise TurnFailed(str(events[-1:]))
        return tokens, int(ends[0]["usage"]["position"]), first


class Story:
    """A session's turns as its callers were told of them."""

    def __init__(self, caller, server):
        self.caller = caller
        self.id, self.position = caller.create(server)
        self.turns, self.unanswered, self.repeated = [], 0, 0
        # The position before the last turn, while no answer says that this turn is stored: a server's memory may have it
        # although the store does not.
        self.before_doubtful = None

    def forget_doubtful_turn(self):
        self.turns.pop()
        self.position, self.before_doubtful = self.before_doubtful, None

    def run_turn(self, turn, pick):
        """Makes one turn, at servers that `pick` returns, until it is answered or found to be there. Returns the
        seconds to its first token, if it was answered at once."""
        length = len(turn["text"]) + turn["n"]
        deadline, attempts, failures, doubtful = time.monotonic() + 120, 0, [], None
        while True:
            try:
                tokens, position, first = self.caller.turn(pick(), self.id, turn, self.position)
                if position != self.position + length:
                    raise AssertionError(f"{self.id}: at {position} after {turn} from {self.position}: {failures}")
                turn["tokens"] = tokens
                break
            except TurnFailed as failed:
                first, attempts = None, attempts + 1
                failures.append(str(failed))
                if time.monotonic() > deadline:
                    raise AssertionError(f"{self.id}: not answered: {failures}") from failed
                time.sleep(0.05)
            try:
                position, durable = self.caller.position(pick(), self.id)
            except TurnFailed as failed:
                failures.append(str(failed))
                continue
            if position == self.position + length:  # its answer was lost
                self.unanswered += 1
                doubtful = None if durable else self.position
                break
            if position == self.before_doubtful and durable:
                self.forget_doubtful_turn()
            if position != self.position and durable:
                raise AssertionError(f"{self.id}: at {position}, was told {self.position}: {failures}") from None
        self.repeated += attempts > 0
        self.turns.append(turn)
        self.position += length
        self.before_doubtful = doubtful
        return first if attempts == 0 else None

    def check(self, server, undisturbed):
        """Compares with the same turns in a session that nobody disturbed."""
        self.run_turn({"text": "last", "n": 8, "seed": 1}, lambda: server)
        twin, position = self.caller.create(undisturbed)
        for turn in self.turns:
            tokens, position, _ = self.caller.turn(undisturbed, twin, turn, position)
            if turn.get("tokens", tokens) != tokens:
                raise AssertionError(f"{self.id}: {turn}, an undisturbed session says {tokens}")


def some_turn(rng):
    return {"text": "".join(rng.choice("abc (=):\n") for _ in range(rng.randint(1, 40))), "n": rng.randint(1, 10),
            "seed": rng.randint(1, 1 << 30)}


class Front:
    """Three servers behind HAProxy, by the shipped files: gRPC at `address`, HTTP at `http_port`. A session's calls stay
    on a server until its checks fail."""

    def __init__(self, ports, http_ports):
        self._folders = [tempfile.mkdtemp() for _ in range(2)]
        self._proxies = []
        try:
            self._start(self._folders[0], "haproxy.cfg", 50051, ports, r"/run/haproxy/admin\.sock", "{}")
            self._start(self._folders[1], "haproxy-http.cfg", 8080, http_ports, r"^    log /dev/log local0",
                        "    stats socket {}")
            for proxy in self._proxies:
                for k in range(3):
                    proxy.await_status(f"ovq{k + 1}", "UP")
        except BaseException:
            self.close()
            raise
        self.address, self.http_port = self._proxies[0].address, self._proxies[1].port

    def _start(self, folder, config, port, ports, replaced, socket):
        first, second, third = (f"127.0.0.1:{port}" for port in ports)
        self._proxies.append(HaproxyProcess(os.path.join(ROOT, "deploy", "haproxy", config), folder, {
            r"^    user haproxy\n    group haproxy\n": "",
            replaced: socket.format(os.path.join(folder, "admin.sock")),
            r"^    option persist\n": "",
            rf"192\.0\.2\.1:{port}": first,
            rf"192\.0\.2\.2:{port}": f"{second}\n    server ovq3 {third}"}))

    def close(self):
        for proxy in self._proxies:
            proxy.kill()
        for folder in self._folders:
            shutil.rmtree(folder)


class Fleet:
    """Three servers on one store, each at the same ports all the time."""

    def __init__(self, store, behind_haproxy=False):
        self.store, self.lock = store, threading.Lock()
        self.ports, self.http_ports = ([free_port() for _ in range(3)] for _ in range(2))
        self.servers, self.gone, self.front, self.fenced, self.lost = [], [], None, 0, 0
        try:
            for k in range(3):
                self.servers.append(self.serve(k))
            if behind_haproxy:
                self.front = Front(self.ports, self.http_ports)
        except BaseException:
            self.close()
            raise

    def serve(self, k):
        room = f"{64 + 2 * OPTIONS.sessions}M"  # for all sessions on one server
        return ServerProcess(binary(), MODEL, *SERVES, "--http-listen", f"127.0.0.1:{self.http_ports[k]}",
                             "--state-memory", room, *self.store.server_flags(), port=self.ports[k])

    def pick(self, rng):
        with self.lock:
            return self.front or rng.choice(self.servers)

    def replace(self, k):
        """Kills a server and starts another one."""
        with self.lock:
            self.gone.append(self.servers.pop(k))
        self.gone[-1].process.kill()
        self.gone[-1].process.wait()
        new = self.serve(k)
        with self.lock:
            self.servers.insert(k, new)

    def stop_and_wake(self, k, seconds, story, rng):
        """Stops a server that has the story's session; another one goes on with it."""
        server = self.servers[k]
        story.run_turn(some_turn(rng), lambda: server)
        before = [metric(server, *name) for name in COUNTED]
        server.process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        story.run_turn(some_turn(rng), lambda: self.servers[k - 1])
        time.sleep(max(0, seconds - (time.monotonic() - begin)))
        server.process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + 20
        while metric(server, *COUNTED[0]) == before[0]:
            assert time.monotonic() < deadline, f"the woken server does not let the session go: {events(server)}"
            time.sleep(0.1)
        lost, fenced = (metric(server, *name) - was for name, was in zip(COUNTED, before))
        self.lost += lost
        self.fenced += fenced

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.front:
            self.front.close()
        for server in self.servers + self.gone:
            server.process.send_signal(signal.SIGCONT)
            server.kill()


COUNTED = (("ovq_session_events_total", 'event="lost"'), ("ovq_session_writes_fenced_total", ""))


def events(server):
    return [line for line in server.metrics().splitlines() if line.startswith("ovq_session_events_total")]


def metric(server, name, label=""):
    lines = [line for line in server.metrics().splitlines() if line.startswith(name + "{") and label in line]
    assert len(lines) == 1, (name, label, lines)
    return float(lines[0].rsplit(" ", 1)[1])


class SharedStoreTests:
    """The tests of one kind of store, a mixin of unittest.TestCase.

    new_store() starts a store: with `name`, `port`, kill() and start(), and server_flags(port), a server's flags for it,
    where a proxy may have another port.
    """

    def talk(self, story, pick, rng, end, errors):
        try:
            while not end.is_set():
                story.run_turn(some_turn(rng), pick)
        except Exception as error:
            errors.append(error)
            end.set()

    def with_load(self, fleet, stories, rng, disturb):
        """Runs `disturb` while all sessions have turns at random servers."""
        end, errors = threading.Event(), []
        talkers = [threading.Thread(target=self.talk, daemon=True, args=(
            story, lambda own=random.Random(rng.random()): fleet.pick(own), random.Random(rng.random()), end, errors))
            for story in stories]
        for talker in talkers:
            talker.start()
        try:
            disturb(end)
        finally:
            end.set()
            for talker in talkers:
                talker.join(150)
        self.assertEqual(errors, [])

    def stories(self, fleet, count):
        return [Story(GrpcCaller() if k % 2 == 0 else HttpCaller(), fleet.servers[k % 3]) for k in range(count)]

    def check_all(self, stories, fleet):
        with ServerProcess(binary(), MODEL, *UNSHARED) as undisturbed:
            for k, story in enumerate(stories):
                story.check(fleet.servers[k % 3], undisturbed)

    def test_servers_that_die_or_sleep(self):
        """Each call goes to a server by chance, which has it transferred or takes it over."""
        self.disturb_servers()

    def disturb_servers(self, behind_haproxy=False):
        rng = random.Random(OPTIONS.seed)
        with self.new_store() as store, Fleet(store, behind_haproxy) as fleet:
            stories = self.stories(fleet, OPTIONS.sessions)
            done, moving = {"killed": 0, "stopped": 0}, Story(GrpcCaller(), fleet.servers[0])

            def disturb(end):
                for k in range(OPTIONS.rounds):
                    time.sleep(rng.uniform(0.5, 2))
                    if end.is_set():
                        return
                    if k % 2 == 0:
                        fleet.replace(rng.randrange(3))
                        done["killed"] += 1
                    else:
                        fleet.stop_and_wake(rng.randrange(3), LEASE * rng.uniform(1.5, 2.5), moving, rng)
                        done["stopped"] += 1
                time.sleep(1)

            self.with_load(fleet, stories, rng, disturb)
            stories.append(moving)
            self.check_all(stories, fleet)
            turns = sum(len(story.turns) for story in stories)
            print(f"{done['killed']} servers killed, {done['stopped']} stopped for longer than their leases: {turns} turns "
                  f"of {len(stories)} sessions, none lost or doubled; {sum(s.repeated for s in stories)} made again, "
                  f"{sum(s.unanswered for s in stories)} stored without an answer; woken servers let "
                  f"{fleet.lost:.0f} sessions go, {fleet.fenced:.0f} of their writes were refused")
            self.assertGreater(turns, OPTIONS.rounds * len(stories))

    def test_a_store_that_restarts(self):
        rng = random.Random(OPTIONS.seed)
        with self.new_store() as store, Fleet(store) as fleet:
            stories = self.stories(fleet, OPTIONS.sessions)
            restarts = max(2, OPTIONS.rounds // 2)

            def disturb(end):
                for _ in range(restarts):
                    time.sleep(rng.uniform(0.3, 1.5))
                    if end.is_set():
                        return
                    store.kill()
                    time.sleep(rng.uniform(0, 2 * LEASE))
                    store.start()
                time.sleep(2)

            self.with_load(fleet, stories, rng, disturb)
            self.check_all(stories, fleet)
            turns = sum(len(story.turns) for story in stories)
            print(f"{store.name} killed and restarted {restarts} times under load: {turns} turns, none lost or doubled")
            self.assertGreater(turns, len(stories))

    def test_a_server_that_is_cut_off_writes_nothing(self):
        caller = GrpcCaller()
        with self.new_store() as store, Proxy(store.port) as proxy, \
                ServerProcess(binary(), MODEL, *FLAGS, *store.server_flags(proxy.port)) as first, \
                ServerProcess(binary(), MODEL, *FLAGS, *store.server_flags()) as second, \
                ServerProcess(binary(), MODEL, *UNSHARED) as undisturbed:
            story = Story(caller, first)
            self.assertEqual(metric(first, "ovq_sessions_owned"), 1)
            proxy.cut(True)
            failed = []

            def late_turn():
                try:
                    caller.turn(first, story.id, {"text": "mine", "n": 4, "seed": 7}, story.position)
                except TurnFailed as error:
                    failed.append(str(error))

            late = threading.Thread(target=late_turn)
            late.start()
            story.run_turn(some_turn(random.Random(3)), lambda: second)
            proxy.cut(False)
            late.join(30)
            self.assertEqual(len(failed), 1)
            self.assertIn("another one has it now", failed[0])
            self.assertEqual(metric(first, "ovq_session_writes_fenced_total"), 1)
            self.assertEqual(metric(first, "ovq_session_events_total", 'event="lost"'), 1)
            self.assertEqual(metric(first, "ovq_sessions_owned"), 0)
            story.run_turn(some_turn(random.Random(4)), lambda: first)  # it is transferred back
            story.check(second, undisturbed)

    def test_figures(self):
        """Measures the first token after the death of a session's server, and a turn's cost beside a folder's."""
        rng, caller = random.Random(OPTIONS.seed), GrpcCaller()
        waits = []
        with self.new_store() as store:
            first = ServerProcess(binary(), MODEL, *FLAGS, *store.server_flags())
            with ServerProcess(binary(), MODEL, *FLAGS, *store.server_flags()) as second:
                try:
                    stories = [Story(caller, first) for _ in range(5)]
                    for story in stories:
                        story.run_turn(some_turn(rng), lambda: first)
                finally:
                    first.kill()
                for story in stories:
                    waits.append(story.run_turn(some_turn(rng), lambda: second))
        self.assertNotIn(None, waits)
        self.assertLess(max(waits), LEASE + 10)
        costs = {}
        with self.new_store() as store, tempfile.TemporaryDirectory() as folder:
            for name, place in (("memory", ()), ("a folder", ("--session-dir", folder)),
                                (store.name, ("--session-lease", "10s", *store.server_flags()))):
                with ServerProcess(binary(), MODEL, *UNSHARED, *place) as server, Client(server.address) as client:
                    session, times = client.create_session(START, max_centroids=CENTROIDS), []
                    for k in range(60):
                        begin = time.monotonic()
                        for _ in client.generate("ab", session_id=session.session_id, max_tokens=1, seed=k + 1):
                            pass
                        times.append(time.monotonic() - begin)
                    costs[name] = 1000 * statistics.median(times)
        print(f"first token after the death of a session's server, lease {LEASE} s: {waits[0]:.2f} s for the first "
              f"session, {statistics.median(waits[1:]):.2f} s for others after it; a turn of one token, median: " +
              ", ".join(f"{name} {cost:.1f} ms" for name, cost in costs.items()))

    def check_refused(self, cases):
        """cases: [(flags, exit code, pattern of stderr)]."""
        for flags, code, words in cases:
            exit_code, _, stderr = run_to_end(binary(), "--model", MODEL, "--listen", "127.0.0.1:0",
                                              "--metrics-address", "", *flags)
            self.assertEqual(exit_code, code, stderr)
            self.assertIsNotNone(re.search(words, stderr), stderr)
