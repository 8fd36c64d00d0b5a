"""Kills a server at random moments while sessions are used: no answered turn is lost or applied
twice, and every session continues like an undisturbed one.

usage: crash_test.py --build BUILD_FOLDER [--kills N] [--seed N] [--sessions N] [unittest arguments]

The tests run it with few kills; docs/operations.md has the campaign.
"""

import argparse
import os
import random
import shutil
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

from server_process import ROOT, ServerProcess, run_to_end, wait_for
from tiny_model import write_tiny_model

sys.path.insert(0, os.path.join(ROOT, "clients", "python"))
from ovq_client import Client, Finished, OvqError, TokenChunk

OPTIONS = None
BINARY = None
FLAGS = ("--threads", "1", "--session-ttl", "1h", "--admission", "overcommit")


def answer(client, session_id, turn):
    """Returns (tokens, position) of a turn."""
    tokens, position = [], None
    for event in client.generate(turn["text"], session_id=session_id, max_tokens=turn["n"], seed=turn["seed"],
                                 temperature=1.0, ignore_eos=True, timeout=60):
        if isinstance(event, TokenChunk):
            tokens += event.token_ids
        elif isinstance(event, Finished):
            position = event.usage.position
    if position is None:
        raise AssertionError("an answer without an end")
    return tokens, position


class Talker(threading.Thread):
    """A thread that runs turns of one session until the server is gone."""

    def __init__(self, story, address, rng):
        super().__init__(daemon=True)
        self.story, self.address, self.rng = story, address, rng
        self.error = None

    def run(self):
        try:
            with Client(self.address) as client:
                while True:
                    self.step(client)
        except OvqError as error:
            if error.code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                self.error = error
        except Exception as error:
            self.error = error

    def step(self, client):
        story = self.story
        if story.id is None:
            created = client.create_session("once", max_centroids=16)
            story.id, story.position = created.session_id, created.position
            story.start = created.position
        turn = {"text": "x" * self.rng.randint(1, 90), "n": self.rng.randint(0, 12),
                "seed": self.rng.randint(1, 1 << 30)}
        story.open = turn
        turn["tokens"], position = answer(client, story.id, turn)
        story.told(position)


class Story:
    """A session's inputs, and its answers."""

    def __init__(self):
        self.id = None
        self.position = self.start = 0
        self.open = None  # the turn without an answer yet
        self.turns = []

    def told(self, position):
        if position != self.position + len(self.open["text"]) + self.open["n"]:
            raise AssertionError(f"{self.id}: at {position} after {self.open} from {self.position}")
        self.turns.append(self.open)
        self.position, self.open = position, None

    def after_restart(self, client):
        """Asserts that the turn without an answer was applied as a whole or not at all."""
        if self.id is None:
            return
        session = client.get_session(self.id)
        if self.open is not None and session.position != self.position:
            self.told(session.position)  # the turn was stored, but its answer was lost
        if session.position != self.position:
            raise AssertionError(f"{self.id}: at {session.position}, was told {self.position}")
        if not session.durable:
            raise AssertionError(f"{self.id}: not durable")
        self.open = None

    def check(self, client):
        """Compares with the same turns in an undisturbed session."""
        twin = client.create_session("once", max_centroids=16).session_id
        for turn in self.turns + [{"text": "last", "n": 8, "seed": 1}]:
            tokens, _ = answer(client, twin, turn)
            if turn["text"] == "last":
                turn["tokens"], _ = answer(client, self.id, turn)
            if turn.get("tokens", tokens) != tokens:
                raise AssertionError(f"{self.id}: {turn}, an undisturbed session says {tokens}")
        client.delete_session(twin)


class CrashTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.model = os.path.join(self.folder, "model")
        write_tiny_model(self.model)
        self.sessions = os.path.join(self.folder, "sessions")

    def serve(self, *flags, folder=None):
        return ServerProcess(BINARY, self.model, *FLAGS, "--session-dir", folder or self.sessions, *flags)

    def metric(self, server, name, label):
        lines = [line for line in server.metrics().splitlines() if line.startswith(name + "{") and label in line]
        self.assertEqual(len(lines), 1, f"{name} {label}")
        return float(lines[0].rsplit(" ", 1)[1])

    def test_kills(self):
        rng = random.Random(OPTIONS.seed)
        stories = [Story() for _ in range(OPTIONS.sessions)]
        restarts = []
        for kill in range(OPTIONS.kills):
            flags = ("--session-sync", rng.choice(("always", "interval")), "--state-memory", rng.choice(("1M", "64M")))
            begin = time.monotonic()
            with self.serve(*flags) as server:
                restarts.append(time.monotonic() - begin)
                self.assertNotIn("damaged", server.stderr())
                with Client(server.address) as client:
                    for story in stories:
                        story.after_restart(client)
                talkers = [Talker(story, server.address, random.Random(rng.random())) for story in stories]
                for talker in talkers:
                    talker.start()
                time.sleep(rng.uniform(0.05, 1.5))
                server.kill()
                for talker in talkers:
                    talker.join(60)
                    self.assertIsNone(talker.error)
        with self.serve("--state-memory", "64M") as server, Client(server.address) as client:
            for story in stories:
                story.after_restart(client)
                if story.id is not None:
                    story.check(client)
        turns = sum(len(story.turns) for story in stories)
        print(f"{OPTIONS.kills} kills, {turns} turns of {len(stories)} sessions answered, none lost or doubled; "
              f"starts of {1000 * sorted(restarts)[len(restarts) // 2]:.0f} ms in the median")
        self.assertGreater(turns, OPTIONS.kills)

    def test_a_restart_in_order(self):
        with self.serve() as server, Client(server.address) as client:
            session = client.create_session("hello", max_centroids=16)
            self.assertTrue(session.durable)
            answer(client, session.session_id, {"text": "a", "n": 5, "seed": 1})
            with self.serve() as other, Client(other.address) as there:
                self.assertIn("0 sessions found", other.stderr())
                self.assertIn("1 more that other servers have", other.stderr())
                self.assertEqual(there.get_session(session.session_id).position, 11)
                self.assertEqual(self.metric(other, "ovq_session_events_total", 'event="take_over"'), 1)
                self.assertEqual(self.metric(server, "ovq_session_events_total", 'event="let_go"'), 1)
            server.terminate()
            self.assertEqual(server.wait(), 0)
        with self.serve() as server, Client(server.address) as client:
            self.assertIn("1 sessions found", server.stderr())
            self.assertEqual(self.metric(server, "ovq_sessions", 'state="hibernated"'), 1)
            found = client.get_session(session.session_id)
            self.assertTrue(found.hibernated)
            self.assertEqual(found.position, 11)
            answer(client, session.session_id, {"text": "a", "n": 5, "seed": 1})
            self.assertFalse(client.get_session(session.session_id).hibernated)
            # The engine's figures are those of an iteration that has ended.
            wait_for(lambda: self.metric(server, "ovq_sessions", 'state="hibernated"') == 0)
            self.assertEqual(self.metric(server, "ovq_session_events_total", 'event="wake"'), 1)
            self.assertEqual(self.metric(server, "ovq_session_disk_duration_seconds_count", 'kind="append"'), 1)
            self.assertGreater(self.metric(server, "ovq_session_disk_bytes_total", 'kind="append"'), 0)
            self.assertEqual(self.metric(server, "ovq_session_disk_errors_total", 'kind="append"'), 0)

    def test_where_nothing_can_be_written(self):
        missing = os.path.join(self.folder, "no", "such")
        code, _, stderr = run_to_end(BINARY, "--model", self.model, "--session-dir", missing,
                                     "--listen", "127.0.0.1:0", "--metrics-address", "")
        self.assertEqual(code, 1)
        self.assertIn("--session-dir: ", stderr)
        self.assertIn(missing, stderr)
        code, _, stderr = run_to_end(BINARY, "--model", self.model, "--admission", "overcommit")
        self.assertEqual(code, 2)
        self.assertIn("expected --session-dir", stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--sessions", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    OPTIONS, rest = parser.parse_known_args()
    BINARY = os.path.join(OPTIONS.build, "bin", "ovq-server")
    unittest.main(argv=[sys.argv[0], *rest])
