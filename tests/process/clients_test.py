"""ovq-chat and the Python client against a fake server: no model needed."""

import argparse
import dataclasses
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

if importlib.util.find_spec("grpc") is None:
    print("SKIPPED: no module grpc; install python3-grpcio")
    sys.exit(0)

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients" / "python"))

import grpc
from fake_server import FakeServer, compile_proto

import ovq_client
from ovq_client import Client, Conversation, Finished, FinishReason, OvqError, Started, TokenChunk
from ovq_client import session_file

CHAT = None  # path of ovq-chat, set by main
PROTO = None  # the generated modules


def text_of(events):
    return "".join(e.text for e in events if isinstance(e, TokenChunk))


class WithServer(unittest.TestCase):
    def setUp(self):
        self.server = FakeServer(*PROTO).start()
        self.addCleanup(self.server.stop)

    def chat_command(self, *flags):
        return [CHAT, "--server", self.server.address, *flags]

    def run_chat(self, *flags, stdin=""):
        return subprocess.run(
            self.chat_command(*flags), input=stdin, capture_output=True, text=True, timeout=60
        )


class ChatOneShot(WithServer):
    def test_argument(self):
        run = self.run_chat("--prompt", "hello world")
        self.assertEqual((run.returncode, run.stdout), (0, "11:lo world"))

    def test_file_and_stdin_are_sent_byte_for_byte(self):
        question = "zwei\nZeilen äöü\n"
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.write(question)
            file.flush()
            from_file = self.run_chat("--file", file.name)
        from_stdin = self.run_chat(stdin=question)
        self.assertEqual(from_file.returncode, 0, from_file.stderr)
        self.assertEqual(from_file.stdout, from_stdin.stdout)
        self.assertEqual([turn.prompt.text for turn in self.server.turns], [question] * 2)

    def test_stats_line(self):
        run = self.run_chat("--prompt", "hello world", "--max-tokens", "4")
        self.assertRegex(
            run.stderr,
            r"^\[prompt 11 tokens, 1100\.0 tokens/s \| generated 4 tokens, 150\.0 tokens/s \| "
            r"TTFT \d+ ms \| state 1\.5 KiB \| position 15 \| length\]\n$",
        )

    def test_flags_reach_the_request(self):
        run = self.run_chat(
            *("--prompt=x", "--max-tokens=7", "--temperature=0", "--top-k=5", "--top-p=0.5"),
            *("--min-p=0.25", "--seed=18446744073709551615", "--stop=a", "--stop", "b"),
            *("--ignore-eos", "--max-centroids=32", "--keep-session", "--ttl=60"),
            "--memory=closest-pair",
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        turn, opened = self.server.turns[0], self.server.opens[0]
        self.assertTrue(turn.sampling.HasField("temperature"))
        self.assertFalse(turn.sampling.HasField("typical_p"))
        self.assertEqual(
            (turn.sampling.temperature, turn.sampling.top_k, turn.sampling.top_p), (0, 5, 0.5)
        )
        self.assertEqual((turn.sampling.min_p, turn.sampling.seed), (0.25, 2**64 - 1))
        self.assertEqual(list(turn.stop.stop_strings), ["a", "b"])
        self.assertEqual((turn.stop.max_tokens, turn.stop.ignore_eos), (7, True))
        self.assertEqual(
            (opened.memory, opened.max_centroids, opened.keep_session, opened.ttl.seconds),
            ("closest-pair", 32, True, 60),
        )

    def test_absent_flags_stay_absent(self):
        self.run_chat("--prompt", "x")
        turn = self.server.turns[0]
        self.assertEqual(turn.sampling.ListFields() + turn.stop.ListFields(), [])

    def test_kept_session_continues(self):
        first = self.run_chat("--prompt", "abc", "--keep-session")
        session_id = first.stderr.split("\n")[0].removeprefix("session ")
        second = self.run_chat("--prompt", "def", "--session", session_id)
        self.assertEqual(first.stdout, "3:abc")
        self.assertEqual(second.stdout, "11:def")
        self.assertRegex(session_id, r"^[0-9a-f]{32}\.")  # its key, sent again with --session
        third = self.run_chat("--interactive", "--keep-session", stdin="/stats\n")
        self.assertIn("[session ", third.stderr)
        keys = {name.partition(".")[0] for name in self.server.sessions}
        self.assertEqual(len(keys), 2)

    def test_big_prompt_goes_in_parts(self):
        question = "ä€😀x" * 25000  # 10 bytes each: cuts fall within characters
        run = self.run_chat(stdin=question)
        self.assertEqual(run.stdout, "250000:" + question[-8:])
        turns = self.server.turns
        self.assertEqual("".join(turn.prompt.text for turn in turns), question)
        self.assertEqual([turn.more for turn in turns], [True] * (len(turns) - 1) + [False])
        sizes = [len(turn.prompt.text.encode()) for turn in turns]
        self.assertLessEqual(max(sizes), 64 * 1024)
        self.assertEqual(len(sizes), 4)
        self.assertIn("[prompt 250000 tokens, ", run.stderr)

    def test_parts_end_with_a_line_where_one_is_near(self):
        question = "".join(f"line {i:>4} of a long file\n" for i in range(8000))
        self.run_chat(stdin=question)
        parts = [turn.prompt.text for turn in self.server.turns]
        self.assertEqual("".join(parts), question)
        self.assertTrue(all(part.endswith("\n") for part in parts))

    def test_logprobs_are_listed(self):
        run = self.run_chat("--prompt", "a", "--logprobs")
        self.assertEqual(run.stderr.split("\n")[:3], [f"{ord(c)}\t-0.250000" for c in "1:a"])

    def test_interrupt_cancels_the_answer(self):
        process = subprocess.Popen(
            self.chat_command("--prompt", "slow"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.assertEqual(process.stdout.read(3), b"...")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130, stderr)
        self.assertIn(b"cancelled]", stderr)


class ChatInteractive(WithServer):
    def test_turns_share_a_session(self):
        run = self.run_chat("--interactive", stdin="abc\n\ndef\n/stats\n/quit\nnot sent\n")
        self.assertEqual((run.returncode, run.stdout), (0, "3:abc\n11:def\n"), run.stderr)
        self.assertEqual(len(self.server.turns), 2)
        self.assertIn(
            "| position 17 | prompt 6 tokens | generated 11 tokens | state 1.5 KiB of at most "
            "4.0 MiB |",
            run.stderr,
        )
        self.assertEqual(run.stderr.count("TTFT"), 2)
        self.assertEqual(self.server.sessions, {})  # it ended with the stream

    def test_fork_prints_the_copys_id(self):
        run = self.run_chat("--interactive", "--keep-session", stdin="abc\n/fork\ndef\n")
        self.assertEqual((run.returncode, run.stdout), (0, "3:abc\n11:def\n"), run.stderr)
        kept, copy = re.findall(r"^(?:> )?session (\S+)$", run.stderr, re.MULTILINE)
        self.assertEqual(self.server.sessions[copy].position, 8)
        self.assertEqual(self.server.sessions[kept].position, 17)
        self.assertEqual(kept.split(".")[0], copy.split(".")[0])
        again = self.run_chat("--session", copy, "--prompt", "def")
        self.assertEqual(again.stdout, "11:def", again.stderr)

    def test_undo_takes_the_last_question_back(self):
        run = self.run_chat("--interactive", "--keep-session", stdin="/undo\nabc\ndef\n/undo\nxy\n/undo\n/undo\n/undo\n")
        self.assertEqual((run.returncode, run.stdout), (0, "3:abc\n11:def\n10:xy\n"), run.stderr)
        self.assertEqual(re.findall(r"back at position (\d+)", run.stderr), ["8", "8", "0"])
        self.assertEqual(run.stderr.count("nothing was asked here"), 2)
        kept = re.search(r"^session (\S+)$", run.stderr, re.MULTILINE)[1]
        self.assertEqual(self.server.sessions[kept].position, 0)

    def test_save_and_load(self):
        with tempfile.TemporaryDirectory() as folder:
            file, bad = os.path.join(folder, "kept"), os.path.join(folder, "bad")
            with open(bad, "w") as out:
                out.write("no session")
            run = self.run_chat(
                "--interactive",
                "--keep-session",
                stdin=f"abc\n/save {file}\n/save {file}\n/load {file}\n/load {bad}\n/load {bad}x\n",
            )
            with open(file) as saved:
                self.assertEqual(saved.read(), "session 8")
        self.assertEqual((run.returncode, run.stdout), (0, "3:abc\n"), run.stderr)
        self.assertIn(f"[9 bytes in {file}]", run.stderr)
        self.assertIn(f"{file}: File exists", run.stderr)
        self.assertIn("session file: damaged", run.stderr)
        self.assertIn(f"{bad}x: No such file", run.stderr)
        _, made = re.findall(r"^(?:> )?session (\S+)$", run.stderr, re.MULTILINE)
        self.assertEqual(self.server.sessions[made].position, 8)

    def test_undo_takes_messages_back(self):
        self.run_chat("--interactive", "--system", "S", stdin="Hi\nBye\n/undo\nYo\n/undo\n/undo\nNew\n")
        conversations = [turn.prompt.conversation for turn in self.server.turns]
        self.assertEqual(
            [([m.content for m in c.messages][-1], len(c.messages), c.known) for c in conversations],
            [("Hi", 2, 0), ("Bye", 4, 3), ("Yo", 4, 3), ("New", 2, 0)],
        )
        self.assertEqual(conversations[2].messages[2], conversations[1].messages[2])

    def test_messages_bring_the_conversation(self):
        run = self.run_chat("--interactive", "--system", "S", stdin="Hi\nBye\n")
        self.assertEqual((run.returncode, run.stdout), (0, "17:[user]Hi\n37:user]Bye\n"), run.stderr)
        first, second = (turn.prompt.conversation for turn in self.server.turns)
        self.assertEqual([(m.role, m.content) for m in first.messages], [("system", "S"), ("user", "Hi")])
        self.assertEqual(
            [(m.role, m.content) for m in second.messages[2:]],
            [("assistant", "17:[user]Hi"), ("user", "Bye")],
        )
        self.assertEqual((first.known, second.known), (0, 3))
        run = self.run_chat("--messages", "--session", "x", "--prompt", "Hi")
        self.assertEqual(run.returncode, 2)
        self.assertIn("not with --session", run.stderr)

    def test_interrupt_keeps_the_conversation_then_ends_it(self):
        process = subprocess.Popen(
            self.chat_command("--interactive"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        process.stdin.write(b"slow\n")
        process.stdin.flush()
        self.assertEqual(process.stdout.read(3), b"...")
        process.send_signal(signal.SIGINT)
        process.stdin.write(b"abc\n")
        process.stdin.flush()
        line = process.stdout.readline() + process.stdout.readline()
        self.assertRegex(line, rb"^\.*\n8:abc\n$")
        while not process.stderr.readline().endswith(b"| stop]\n"):
            pass
        self.assertEqual(process.stderr.read(2), b"> ")  # the turn is over for the program, too
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        self.assertEqual(process.wait(timeout=30), 130)
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


class ChatErrors(WithServer):
    def check(self, run, code, message):
        self.assertEqual((run.returncode, run.stdout), (code, ""))
        self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
        self.assertTrue(run.stderr.startswith("ovq-chat: " + message), run.stderr)

    def test_status_of_the_server(self):
        self.check(
            self.run_chat("--prompt", "bad"),
            1,
            "INVALID_ARGUMENT: temperature: expected [0, 100]",
        )
        self.check(self.run_chat("--prompt=x", "--session=none"), 1, "NOT_FOUND: no session none")

    def test_connection_refused(self):
        self.server.stop()
        self.check(self.run_chat("--prompt", "x"), 1, "UNAVAILABLE: failed to connect")

    def test_server_from_the_environment(self):
        run = subprocess.run(
            [CHAT, "--prompt", "abc"],
            env={**os.environ, "OVQ_SERVER": self.server.address},
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual(run.stdout, "3:abc")

    def test_usage(self):
        self.check(self.run_chat("--nonsense"), 2, "unknown flag --nonsense")
        self.check(
            self.run_chat("--top-k=x"),
            2,
            "--top-k: expected a whole number from 0 to 4294967295, got 'x'",
        )
        self.check(self.run_chat("--prompt"), 2, "--prompt needs a value")
        self.check(self.run_chat("hello"), 2, "unexpected argument 'hello'")
        self.check(self.run_chat("--prompt=a", "--file=b"), 2, "give one of")
        self.assertEqual(self.run_chat("--help").returncode, 0)

    def test_question_that_cannot_be_sent(self):
        self.check(self.run_chat("--file=/does/not/exist"), 1, "/does/not/exist: No such file")
        run = subprocess.run(
            self.chat_command(), input=b"abc\xff", capture_output=True, timeout=60
        )
        self.assertEqual(run.returncode, 1)
        self.assertIn(b"not valid UTF-8 at byte 3", run.stderr)


class PythonClient(WithServer):
    def setUp(self):
        super().setUp()
        self.client = Client(self.server.address)
        self.addCleanup(self.client.close)

    def test_generate(self):
        events = list(self.client.generate("hello", max_tokens=3, temperature=0, seed=7))
        self.assertEqual(events[0].seed, 7)
        self.assertIsInstance(events[0], Started)
        self.assertEqual(text_of(events), "5:h")
        self.assertIsInstance(events[-1], Finished)
        self.assertEqual(events[-1].reason, FinishReason.LENGTH)
        self.assertEqual((events[-1].usage.position, events[-1].usage.prefill_time), (8, 0.01))
        self.assertEqual((events[-1].usage.queue_time, events[-1].matched_token_id), (None, None))
        request = self.server.requests[0]
        self.assertTrue(request.sampling.HasField("temperature"))
        self.assertFalse(request.HasField("output"))

    def test_generate_from_ids_on_a_session(self):
        session = self.client.create_session("abc", memory="paper", max_centroids=32, ttl=60)
        self.assertEqual((session.position, session.memory, session.max_centroids), (3, "paper", 32))
        self.assertEqual(session.expires.timestamp(), 1060)
        events = list(self.client.generate([100, 101], session_id=session.session_id))
        self.assertEqual(text_of(events), "5:de")
        self.assertEqual(self.client.get_session(session.session_id).position, 9)
        key = session.session_id.partition(".")[0]
        self.assertRegex(key, r"^[0-9a-f]{32}$")  # the server has seen it with every call
        self.assertNotEqual(self.client.create_session().session_id.partition(".")[0], key)

    def test_conversations(self):
        conversation = Conversation([("user", "Hi"), ("assistant", "yo"), ("user", "Bye")], known=2)
        self.assertEqual(text_of(self.client.generate(conversation)), "9:user]Bye")
        with self.client.chat() as chat:
            self.assertEqual(text_of(chat.send(conversation)), "9:user]Bye")
        self.assertEqual(self.client.apply_template(conversation), "[user]Bye")
        sent = Conversation([("user", "Hi")], tools_json="[]", add_generation_prompt=False)
        list(self.client.generate(sent))
        request = self.server.requests[-1].prompt.conversation
        self.assertEqual((request.tools_json, request.add_generation_prompt), ("[]", False))

    def test_closing_the_iterator_cancels_the_call(self):
        events = self.client.generate("slow")
        next(events)
        next(events)
        events.close()
        self.assertEqual(text_of(self.client.generate("abc")), "3:abc")

    def test_unknown_option(self):
        with self.assertRaisesRegex(TypeError, "temprature"):
            next(self.client.generate("x", temprature=1))

    def test_chat(self):
        with self.client.chat(keep_session=True) as chat:
            self.assertEqual(text_of(chat.send("abc", top_k=3)), "3:abc")
            self.assertEqual(text_of(chat.send("def")), "11:def")
        self.assertEqual(self.server.turns[0].sampling.top_k, 3)
        self.assertFalse(self.server.turns[1].HasField("sampling"))
        with self.client.chat(session_id=chat.session.session_id) as again:
            self.assertEqual(again.session.position, 17)

    def test_chat_cancel(self):
        with self.client.chat() as chat:
            events = chat.send("slow")
            self.assertIsInstance(next(events), Started)
            with self.assertRaises(RuntimeError):
                chat.send("too early")
            chat.cancel()
            self.assertEqual(list(events)[-1].reason, FinishReason.CANCELLED)
            self.assertEqual(text_of(chat.send("abc")), "8:abc")

    def test_chat_big_prompts_go_in_parts(self):
        with self.client.chat() as chat:
            self.assertEqual(text_of(chat.send("€" * 50000)), "150000:" + "€" * 8)
            self.assertEqual("".join(t.prompt.text for t in self.server.turns), "€" * 50000)
            self.server.turns.clear()
            list(chat.send([65] * 40000))
            self.assertEqual(
                [len(t.prompt.token_ids.ids) for t in self.server.turns], [16384, 16384, 7232]
            )

    def test_errors(self):
        with self.assertRaises(OvqError) as caught:
            list(self.client.generate("bad"))
        self.assertEqual(caught.exception.code, grpc.StatusCode.INVALID_ARGUMENT)
        self.assertEqual(caught.exception.message, "temperature: expected [0, 100]")
        self.assertIsNone(caught.exception.info)
        with self.assertRaises(OvqError) as caught:
            self.client.get_session("none")
        self.assertEqual(caught.exception.code, grpc.StatusCode.NOT_FOUND)
        with self.assertRaises(OvqError):
            with self.client.chat() as chat:
                list(chat.send("bad"))
        with self.assertRaises(OvqError) as caught:
            list(self.client.generate("slow", timeout=0.2))
        self.assertEqual(caught.exception.code, grpc.StatusCode.DEADLINE_EXCEEDED)

    def test_unary_calls(self):
        score = self.client.score("abc", top_logprobs=2)
        self.assertEqual((score.token_ids, score.logprobs), ((97, 98, 99), (-0.5, -0.5)))
        self.assertEqual([len(top.token_ids) for top in score.top], [2, 2, 2])
        self.assertEqual(self.client.tokenize("ab", add_bos=True), [256, 97, 98])
        self.assertEqual(self.client.detokenize([104, 105]), "hi")
        info = self.client.model_info([10, 20])
        self.assertEqual((info.name, info.layer_types), ("fake", ("ovq_attention",)))
        self.assertEqual([size.full_kv_cache_bytes for size in info.state_sizes], [1000, 2000])
        self.assertIsNone(info.bos_token_id)

    def test_sessions(self):
        made = [self.client.create_session().session_id for _ in range(5)]
        listed = [session.session_id for session in self.client.list_sessions(page_size=2)]
        self.assertEqual(listed, sorted(made))
        first, second = self.client.fork_session(made[0], 2, ttl=60)
        self.assertEqual(len({first.session_id, second.session_id, *made}), 7)
        plan = self.client.rewind_session(second.session_id, 0, dry_run=True)
        self.assertEqual((plan.session.session_id, plan.replay_tokens), (second.session_id, 0))
        moved = self.client.import_session(self.client.export_session(second.session_id), ttl=9)
        self.assertEqual(moved.position, second.position)
        with self.assertRaises(OvqError):
            self.client.import_session([b"x" * (3 << 20)])
        self.client.delete_session(moved.session_id)
        for copy in (first, second):
            self.client.delete_session(copy.session_id)
        self.client.delete_session(made[0])
        self.assertEqual(len(list(self.client.list_sessions())), 4)

    def test_every_field_of_the_proto_is_read(self):
        for name in ("Started", "TokenChunk", "Finished", "Usage", "ModelInfo", "Session"):
            fields = PROTO[0].DESCRIPTOR.message_types_by_name[name].fields_by_name
            self.assertEqual(
                list(getattr(ovq_client, name).__dataclass_fields__), list(fields), name
            )

    def test_command_line(self):
        def run(*arguments):
            return subprocess.run(
                [sys.executable, "-m", "ovq_client", "--server", self.server.address, *arguments],
                env={**os.environ, "PYTHONPATH": str(ROOT / "clients" / "python")},
                capture_output=True,
                text=True,
                timeout=60,
            )

        generated = run("generate", "--text", "hello", "--max-tokens", "3", "--top-p", "0.5")
        self.assertEqual(generated.stdout, "5:h", generated.stderr)
        self.assertIn("perplexity         1.6487", run("score", "--text", "abc").stdout)
        self.assertIn("state at 5", run("info", "--position", "5").stdout)
        message = run("generate", "--text", "Hi", "--system", "S")
        self.assertEqual(message.stdout, "17:[user]Hi", message.stderr)
        session_id = run("sessions", "--create").stdout.strip()
        self.assertIn(session_id, run("sessions").stdout)
        copies = run("sessions", "--fork", session_id, "--count", "3").stdout.split()
        self.assertEqual(len(copies), 3)
        self.assertIn(copies[2], run("sessions").stdout)
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "file")
            export = ("sessions", "--export", session_id, file)
            earlier = SessionFiles.PATH
            self.assertEqual(run(*export, "--since", str(earlier)).returncode, 0)
            digest = session_file.read(earlier).base.digest
            self.assertEqual(Path(file).read_bytes(), b"since 7 " + digest)
            self.assertIn("--since goes with --export", run("sessions", "--since", file).stderr)
        self.assertEqual(run("sessions", "--delete", session_id).returncode, 0)
        failed = run("generate", "--text", "bad")
        self.assertEqual(failed.returncode, 1)
        self.assertIn("INVALID_ARGUMENT: temperature", failed.stderr)


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
        nothing = dataclasses.replace(delta, base=delta.since, tokens=(), pending=None)
        self.assertEqual(session_file.join(small, nothing).pending, 3)

    def test_what_is_damaged_is_refused(self):
        for name in ("small.ovqs", "delta.ovqs"):
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
        def run(*arguments):
            return subprocess.run(
                [sys.executable, "-m", "ovq_client", "session-file", *map(str, arguments)],
                env={**os.environ, "PYTHONPATH": str(ROOT / "clients" / "python")},
                capture_output=True,
                text=True,
                timeout=60,
            )

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


def main():
    global CHAT, PROTO
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True, help="CMake's build folder")
    args, rest = parser.parse_known_args()
    CHAT = str(Path(args.build) / "bin" / "ovq-chat")
    if shutil.which(CHAT) is None:
        sys.exit(f"{CHAT} is missing: build the target ovq-chat first")
    with tempfile.TemporaryDirectory() as folder:
        PROTO = compile_proto(folder)
        unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
