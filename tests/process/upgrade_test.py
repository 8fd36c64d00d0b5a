"""Replaces servers behind the shipped HAProxy configuration under load, by the commands of
docs/operations.md in their order: one of two, both of two with one session folder, all of three with one Redis.

usage: upgrade_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import contextlib
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import redis_process
from free_port import free_port
from haproxy_process import proxy_of_a_pair  # this module knows the path of the program

try:
    import grpc
except ImportError as error:
    print(f"SKIPPED: {error}; install python3-grpcio")
    sys.exit(0)
for tool, package in (("haproxy", "haproxy"), ("protoc", "protobuf-compiler")):
    if shutil.which(tool) is None:
        print(f"SKIPPED: no {tool}; install {package}")
        sys.exit(0)

from server_process import ROOT, ServerProcess, wait_for
from tiny_model import write_tiny_model

sys.path.insert(0, os.path.join(ROOT, "clients", "python"))
from ovq_client import Client, Finished, OvqError, TokenChunk

with open(os.path.join(ROOT, "docs", "operations.md")) as file:
    OPERATIONS = file.read()
BINARY = None
FLAGS = ("--state-memory", "64M", "--threads", "1", "--drain-timeout", "20s")
UNAVAILABLE, NOT_FOUND = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND
# HAProxy 2.6 resets a stream that its server has ended first, and gRPC may then drop the status.
ENDED_CHAT = (UNAVAILABLE, grpc.StatusCode.CANCELLED)


def documented_commands(heading="Behind HAProxy"):
    """Returns the indented lines of the section under this heading."""
    section = OPERATIONS.split("\n## Stopping and upgrading\n")[1].split("\n## ")[0]
    block = section.split(f"### {heading}\n")[1].split("### ")[0]
    return [line.strip() for line in block.splitlines() if line.startswith("    ")]


def tokens_of(events):
    """Returns (count, Finished) of one answer."""
    tokens, finished = 0, None
    for event in events:
        if isinstance(event, TokenChunk):
            tokens += len(event.token_ids)
        elif isinstance(event, Finished):
            finished = event
    return tokens, finished


class Worker(threading.Thread):
    """Repeats step() until stopped or until step() fails; `done` counts."""

    def __init__(self, client):
        super().__init__(daemon=True)
        self.client = client
        self.done = 0
        self.error = None
        self.stopping = threading.Event()

    def run(self):
        try:
            while not self.stopping.is_set():
                self.step()
                self.done += 1
        except Exception as error:
            self.error = error

    def await_more(self, count=3):
        goal = self.done + count
        wait_for(lambda: self.done >= goal or self.error is not None, f"{count} more of {self}")
        if self.error is not None:
            raise AssertionError(f"{self}: {self.error!r}") from self.error

    def stop(self):
        self.stopping.set()
        self.join(30)


class OneShots(Worker):
    def step(self):
        tokens, finished = tokens_of(
            self.client.generate("one shot", max_tokens=20, ignore_eos=True, timeout=60))
        if tokens != 20 or finished is None:
            raise AssertionError(f"{tokens} tokens, {finished}")


class Turns(Worker):
    """A session in which every turn must continue where the last one ended."""

    def __init__(self, client):
        super().__init__(client)
        self.session_id = client.create_session("begin").session_id
        self.position = len("begin")

    def step(self):
        tokens, finished = tokens_of(self.client.generate(
            "turn", session_id=self.session_id, max_tokens=4, ignore_eos=True, timeout=60))
        self.position += len("turn") + 4
        if tokens != 4 or finished.usage.position != self.position:
            raise AssertionError(f"{finished}, expected position {self.position}")
        time.sleep(0.01)

    def finish(self):
        self.stop()
        if self.error is not None:
            raise AssertionError(f"{self}: {self.error!r}") from self.error
        self.client.delete_session(self.session_id)


class Chats(Worker):
    """A Chat with the same check; the thread that uses it opens and closes it."""

    def __init__(self, client):
        super().__init__(client)
        self.session_id = None
        self.position = 0
        self.answer = 4

    def run(self):
        try:
            with self.client.chat() as self.chat:
                self.session_id = self.chat.session.session_id
                while not self.stopping.is_set():
                    self.step()
                    self.done += 1
        except Exception as error:
            self.error = error

    def step(self):
        answer = self.answer
        tokens, finished = tokens_of(
            self.chat.send("turn", max_tokens=answer, ignore_eos=True))
        self.position += len("turn") + answer
        if tokens != answer or finished.usage.position != self.position:
            raise AssertionError(f"{finished}, expected position {self.position}")
        time.sleep(0.01)


class Upgrade(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ovq_upgrade_test_")
        self.addCleanup(shutil.rmtree, self.folder)
        self.model = write_tiny_model(os.path.join(self.folder, "tiny"))
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.workers = []

    def serve(self, flags=(), changes={}, count=2):
        """Starts servers and their proxy."""
        self.flags = (*FLAGS, *flags)
        self.servers = [self.start_server(free_port()) for _ in range(count)]
        first, second, *more = (server.address for server in self.servers)
        lines = [f"\n    server ovq{3 + k} {address}" for k, address in enumerate(more)]
        self.proxy = self.stack.enter_context(
            proxy_of_a_pair(self.folder, first, second + "".join(lines), changes))
        for k in range(count):
            self.proxy.await_status(f"ovq{k + 1}", "UP")
        self.client = self.connect(self.proxy.address)

    def tearDown(self):
        for worker in self.workers:
            worker.stop()

    def start_server(self, port):
        return self.stack.enter_context(ServerProcess(BINARY, self.model, *self.flags, port=port))

    def connect(self, address):
        return self.stack.enter_context(Client(address))

    def start(self, worker):
        self.workers.append(worker)
        worker.start()
        return worker

    def metric(self, server, name):
        """Returns the sum over the metric's labels."""
        return sum(float(line.rsplit(" ", 1)[1]) for line in server.metrics().splitlines()
                   if re.match(rf"{name}[{{ ]", line))

    def held(self, server):
        return {session.session_id for session in self.connect(server.address).list_sessions()}

    def start_on_both(self, make, on_each):
        """Returns [those on the first server, those on the others]; the hash of its key places
        each."""
        placed = [[], []]
        for _ in range(100):
            if min(map(len, placed)) >= on_each:
                return placed
            worker = self.start(make(self.client))
            worker.await_more(1)
            first = worker.session_id in self.held(self.servers[0])
            placed[0 if first else 1].append(worker)
        raise AssertionError(f"one server got all of 100: {placed}")

    def run_documented(self, command, last_sessions):
        """Acts according to the command line; `last_sessions` run longer than the wait for the
        sessions."""
        old = self.servers[0]
        if found := re.search(r'"(set server ovq/ovq1 state \w+)"', command):
            self.assertEqual(self.proxy.admin(found.group(1)).strip(), "")
        elif "ovq_sessions" in command:
            wait_for(lambda: self.metric(old, "ovq_sessions") == last_sessions, "the sessions' end")
        elif command.startswith("systemctl stop"):
            old.terminate()
            self.assertEqual(old.wait(), 0)
        elif command.startswith("systemctl start"):
            self.servers[0] = self.start_server(port=old.port)
        elif "ovq_ready" in command:
            wait_for(lambda: self.metric(self.servers[0], "ovq_ready") == 1, "ready")
        else:
            self.fail(f"unknown command in the documentation: {command}")

    def test_a_server_is_replaced_under_load(self):
        self.serve()
        one_shots = [self.start(OneShots(self.client)) for _ in range(3)]
        turns, chats = self.start_on_both(Turns, 3), self.start_on_both(Chats, 2)
        for worker in one_shots:
            worker.await_more()
        commands = documented_commands()
        self.assertEqual(
            [re.search(r"state \w+|ovq_\w+|systemctl \w+", line).group() for line in commands],
            ["state drain", "ovq_sessions", "systemctl stop", "systemctl start", "ovq_ready",
             "state ready"])

        self.run_documented(commands[0], 0)
        # The draining server keeps its sessions; new ones go to the other server.
        for worker in turns[0] + chats[0]:
            worker.await_more()
        born_meanwhile = [self.start(Turns(self.client)) for _ in range(8)]
        self.assertLessEqual({worker.session_id for worker in born_meanwhile},
                             self.held(self.servers[1]))
        patient, *others = turns[0]
        for worker in others:
            worker.finish()
        idle_chat, busy_chat, *other_chats = chats[0]
        for worker in other_chats:
            worker.stop()
            self.assertIsNone(worker.error)
        self.run_documented(commands[1], 1 + 2)

        # The answer that runs when the server is told to stop is completed.
        busy_chat.answer = 2000
        before = busy_chat.done
        busy_chat.await_more(1)
        self.run_documented(commands[2], 0)
        for worker in (patient, idle_chat, busy_chat):
            worker.join(30)
        # The server's last sessions end with it: UNAVAILABLE while it drains, then NOT_FOUND.
        self.assertIsInstance(patient.error, OvqError)
        self.assertIn(patient.error.code, (UNAVAILABLE, NOT_FOUND))
        for worker in (idle_chat, busy_chat):
            self.assertIsInstance(worker.error, OvqError, worker.error)
            self.assertIn(worker.error.code, ENDED_CHAT, worker.error)
        self.assertGreater(busy_chat.done, before)
        with self.assertRaises(OvqError) as caught:
            self.client.get_session(patient.session_id)
        self.assertEqual(caught.exception.code, NOT_FOUND)

        for command in commands[3:]:
            self.run_documented(command, 0)
        self.proxy.await_status("ovq1", "UP")
        # Both servers are used, and no conversation has moved.
        self.start_on_both(Turns, 1)
        wait_for(lambda: self.metric(self.servers[0], "ovq_requests_total") > 50, "one-shots")
        for worker in one_shots + turns[1] + chats[1] + born_meanwhile:
            worker.await_more()
            worker.stop()
            self.assertIsNone(worker.error)

    def test_signal_without_notice(self):
        """New calls go to the other server once the check has failed; calls of sessions do not."""
        self.serve()
        session = self.start_on_both(Turns, 1)[0][0]
        session.stop()
        self.assertIsNone(session.error)
        direct = self.connect(self.servers[0].address)
        held = direct.generate("long", max_tokens=10_000_000, ignore_eos=True)
        next(held)
        self.servers[0].terminate()
        self.proxy.await_status("ovq1", "DOWN")
        for _ in range(10):
            tokens, _ = tokens_of(self.client.generate("x", max_tokens=2, ignore_eos=True))
            self.assertEqual(tokens, 2)
            self.assertEqual(self.client.get_session(session.session_id).position, session.position)
        held.close()
        self.assertEqual(self.servers[0].wait(), 0)

    def test_servers_with_one_folder_are_replaced_under_load(self):
        self.replace_servers_with_one_store("--session-dir", os.path.join(self.folder, "sessions"))

    @unittest.skipUnless(redis_process.installed(), "no redis-server; install redis-server")
    def test_servers_with_one_redis_are_replaced_under_load(self):
        redis = self.stack.enter_context(redis_process.RedisServer())
        self.replace_servers_with_one_store("--session-store", redis.url, count=3)

    def replace_servers_with_one_store(self, *store, count=2):
        """No call fails, no session is lost, and each continues where it was."""
        commands = documented_commands("Behind HAProxy, with one session folder")
        notice = re.search(r"`--drain-notice (\w+)`", OPERATIONS).group(1)
        self.serve([*store, "--drain-notice", notice],
                   {r"^    option persist\n": ""}, count)
        one_shots = [self.start(OneShots(self.client)) for _ in range(2)]
        turns = sum(self.start_on_both(Turns, 3), [])
        idle = self.client.create_session("idle").session_id
        with self.client.chat(keep_session=True) as chat:
            kept = chat.session.session_id
            tokens_of(chat.send("turn", max_tokens=4, ignore_eos=True))
        for worker in one_shots + turns:
            worker.await_more()
        self.assertEqual([re.search(r"systemctl \w+ ovq-server@\d|ovq_ready", line).group() for line in commands],
                         ["systemctl restart ovq-server@1", "ovq_ready",
                          "systemctl restart ovq-server@2", "ovq_ready"])
        for k in range(count):
            old = self.servers[k]
            old.terminate()
            self.assertEqual(old.wait(), 0)
            for worker in one_shots + turns:
                worker.await_more()
            self.servers[k] = self.start_server(port=old.port)
            wait_for(lambda: self.metric(self.servers[k], "ovq_ready") == 1, "ready")
            self.proxy.await_status(f"ovq{k + 1}", "UP")
            for worker in one_shots + turns:
                worker.await_more()
        for worker in turns:
            worker.finish()
        self.assertEqual(self.client.get_session(idle).position, 4)
        with self.client.chat(session_id=kept) as chat:
            _, finished = tokens_of(chat.send("turn", max_tokens=4, ignore_eos=True))
            self.assertEqual(finished.usage.position, 16)
        for worker in one_shots:
            worker.stop()
            self.assertIsNone(worker.error)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BINARY = os.path.join(os.path.abspath(options.build), "bin", "ovq-server")
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
