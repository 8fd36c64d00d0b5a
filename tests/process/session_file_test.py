"""Session files (docs/session-format.md) as the Python package reads, writes and joins them."""

import argparse
import dataclasses
import functools
import sys
import tempfile
import unittest
from pathlib import Path

from client_test_util import ROOT, run_python_client

from ovq_client import session_file


class SessionFiles(unittest.TestCase):
    PATH = ROOT / "tests" / "golden" / "session" / "small.ovqs"

    def test_golden(self):
        session = session_file.read(self.PATH)
        self.assertEqual(session.layout_fingerprint, 0x0123456789ABCDEF)
        self.assertEqual((session.memory, session.made_by), ("ovq", "ovq-server test"))
        self.assertEqual((session.slot_cap, session.position, session.pending), (64, 6, 3))
        self.assertEqual(session.tokens, (5, 0, 41, 7, 7, 12, 3))
        self.assertEqual(session.turn_ends, (3, 7))
        self.assertEqual(session.state, bytes(i * 31 % 256 for i in range(100)))
        self.assertEqual(session.other, ())
        self.assertEqual(session_file.encode(session), self.PATH.read_bytes())

    def test_a_file_and_its_delta_make_a_file(self):
        small, delta, joined = (
            session_file.read(self.PATH.with_name(name))
            for name in ("small.ovqs", "delta.ovqs", "joined.ovqs")
        )
        self.assertEqual((delta.since, delta.base), (small.base, joined.base))
        self.assertEqual((delta.tokens, delta.pending), ((1, 40, 2), 2))
        self.assertEqual(session_file.join(small, delta), joined)
        self.assertEqual(
            session_file.encode(joined), self.PATH.with_name("joined.ovqs").read_bytes()
        )
        for wrong, why in (
            (joined, "goes on from 7 tokens"),
            (dataclasses.replace(small, tokens=None), "has no tokens"),
            (dataclasses.replace(small, tokens=(6, *small.tokens[1:])), "goes on from 7 tokens"),
            (dataclasses.replace(small, slot_cap=65), "not of one session: slot_cap 65"),
        ):
            with self.assertRaisesRegex(session_file.SessionFileError, why):
                session_file.join(wrong, delta)
        wrong = dataclasses.replace(delta, tokens=(1, 40, 3))
        with self.assertRaisesRegex(session_file.SessionFileError, "not those that its head"):
            session_file.join(small, wrong)
        signed, joined = (
            session_file.read(self.PATH.with_name(name))
            for name in ("signed.ovqs", "signed-joined.ovqs")
        )
        self.assertEqual(len(signed.signature), 32)
        self.assertEqual(session_file.join(signed, delta), joined)
        for name, session in (("signed.ovqs", signed), ("signed-joined.ovqs", joined)):
            self.assertEqual(
                session_file.encode(session), self.PATH.with_name(name).read_bytes()
            )
        nothing = dataclasses.replace(delta, base=delta.since, tokens=(), pending=None)
        self.assertEqual(session_file.join(small, nothing).pending, 3)

    def test_what_is_damaged_is_refused(self):
        for name in ("small.ovqs", "signed.ovqs", "delta.ovqs"):
            data = self.PATH.with_name(name).read_bytes()
            for i in range(len(data)):
                flipped = bytearray(data)
                flipped[i] ^= 1 << i % 8
                with self.assertRaises(session_file.SessionFileError, msg=f"byte {i}"):
                    session_file.parse(bytes(flipped))
                with self.assertRaises(session_file.SessionFileError, msg=f"{i} bytes"):
                    session_file.parse(data[:i])
            with self.assertRaisesRegex(session_file.SessionFileError, "behind its end"):
                session_file.parse(data + b"x")

    def test_command_line(self):
        run = functools.partial(run_python_client, "session-file")
        shown = run(self.PATH)
        self.assertIn("position           6\n", shown.stdout, shown.stderr)
        failed = run(__file__)
        self.assertEqual(failed.returncode, 1)
        self.assertIn("not a session file", failed.stderr)
        delta = self.PATH.with_name("delta.ovqs")
        self.assertIn("of 10 tokens, for those that had 7\n", run(delta).stdout)
        with tempfile.TemporaryDirectory() as folder:
            new = Path(folder) / "new.ovqs"
            joined = run(self.PATH, "--join", delta, "--out", new)
            self.assertIn("tokens             10\n", joined.stdout, joined.stderr)
            self.assertEqual(new.read_bytes(), self.PATH.with_name("joined.ovqs").read_bytes())
            self.assertIn("File exists", run(self.PATH, "--join", delta, "--out", new).stderr)
            for arguments, why in (
                ((self.PATH, "--join", delta), "--join and --out go together"),
                ((delta, "--join", delta, "--out", new), "is a delta; --join adds to a file"),
                ((self.PATH, "--join", self.PATH, "--out", new), "is no delta"),
                ((self.PATH, "--join", delta, delta, "--out", new), "goes on from 7 tokens"),
            ):
                self.assertIn(why, run(*arguments).stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", help="not used: no program is built for this")
    _, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
