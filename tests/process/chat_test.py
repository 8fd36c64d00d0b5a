"""ovq-chat with a fake server, with one question or lines from a file; chat_terminal_test.py covers
the terminal.

usage: chat_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from client_test_util import WithServer

CHAT = None  # path of ovq-chat


class WithChat(WithServer):
    def chat_command(self, *flags):
        return [CHAT, "--server", self.server.address, *flags]

    def run_chat(self, *flags, stdin=""):
        return subprocess.run(
            self.chat_command(*flags), input=stdin, capture_output=True, text=True, timeout=60
        )


class ChatOneShot(WithChat):
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

    def test_constraints_are_read_from_files(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as schema:
            schema.write('{"type": "null"}')
            schema.flush()
            for flag, kind, value in (
                ("--json-schema=" + schema.name, "json_schema", '{"type": "null"}'),
                ("--grammar=" + schema.name, "grammar", '{"type": "null"}'),
                ("--regex=a|b", "regex", "a|b"),
            ):
                run = self.run_chat("--prompt=x", flag)
                self.assertEqual(run.returncode, 0, run.stderr)
                constraint = self.server.turns[-1].sampling.constraint
                self.assertEqual((constraint.WhichOneof("kind"), getattr(constraint, kind)), (kind, value))
        run = self.run_chat("--prompt=x", "--json-schema=/nowhere")
        self.assertEqual(run.returncode, 2)
        self.assertIn("--json-schema: expected a file that can be read", run.stderr)

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
        # the session's key, sent again with --session
        self.assertRegex(session_id, r"^[0-9a-f]{32}\.")
        third = self.run_chat("--interactive", "--keep-session", stdin="/stats\n")
        self.assertIn("[session ", third.stderr)
        keys = {name.partition(".")[0] for name in self.server.sessions}
        self.assertEqual(len(keys), 2)

    def test_big_prompt_goes_in_parts(self):
        question = "ä€😀x" * 25000  # 10 bytes each: cuts would fall within characters
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

    def test_an_answer_that_is_there_is_no_error(self):
        run = self.run_chat("--prompt", "last")
        self.assertEqual((run.returncode, run.stdout), (0, "4:last"), run.stderr)
        self.assertNotIn("UNAVAILABLE", run.stderr)

    def test_an_answer_that_is_cut_off_ends_its_line(self):
        run = self.run_chat("--interactive", stdin="cut\n")
        self.assertEqual((run.returncode, run.stdout), (1, "3\n"), run.stderr)
        self.assertIn("UNAVAILABLE: the server is shutting down", run.stderr)

    def test_logprobs_are_listed(self):
        run = self.run_chat("--prompt", "a", "--logprobs")
        self.assertEqual(run.stderr.split("\n")[:3], [f"{ord(c)}\t-0.250000" for c in "1:a"])

    def test_answers_do_not_control_the_terminal(self):
        for prompt, shown in (("\033[2J", "4:^[[2J"), ("\u009b2J", "4:^[[2J"), ("\x7fé\u0085", "5:^?é^[E")):
            with self.subTest(shown):
                terminal, stdout = pty.openpty()
                self.addCleanup(os.close, terminal)
                subprocess.run(self.chat_command("--prompt", prompt), stdout=stdout,
                               stderr=subprocess.DEVNULL, check=True, timeout=60)
                os.close(stdout)
                self.assertEqual(os.read(terminal, 100).decode(), shown + "\r\n")

    def test_interrupt_cancels_the_answer(self):
        process = subprocess.Popen(
            self.chat_command("--prompt", "slow"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.assertEqual(process.stdout.read(3), b"...")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130, stderr)
        self.assertIn(b"cancelled]", stderr)


class ChatInteractive(WithChat):
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
        self.assertEqual(self.server.sessions, {})  # the session ended with the stream

    def test_a_form_stays_where_another_is_set_to_its_default(self):
        with tempfile.TemporaryDirectory() as folder:
            schema = os.path.join(folder, "schema.json")
            with open(schema, "w") as file:
                file.write("{}")
            lines = ("/set regex default", "abc", "/set json-schema default", "def")
            run = self.run_chat("--interactive", "--json-schema", schema, stdin="\n".join(lines))
        self.assertEqual(run.returncode, 0, run.stderr)
        kinds = [turn.sampling.constraint.WhichOneof("kind") for turn in self.server.turns]
        self.assertEqual(kinds, ["json_schema", None])

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

    def test_an_interrupted_save_leaves_no_file(self):
        self.addCleanup(self.server.exports_go_on.set)
        self.server.exports_go_on.clear()
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "kept")
            with subprocess.Popen(self.chat_command("--interactive"), stdin=subprocess.PIPE,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                process.stdin.write(f"abc\n/save {file}\n".encode())
                process.stdin.flush()
                end = time.monotonic() + 30
                while not os.path.exists(file) and time.monotonic() < end:
                    time.sleep(0.01)
                self.assertTrue(os.path.exists(file))
                process.send_signal(signal.SIGINT)
                self.assertEqual(process.wait(timeout=30), 130)
            self.assertEqual(os.listdir(folder), [])

    def test_a_file_that_cannot_be_read_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            run = self.run_chat("--interactive", stdin=f"/load {folder}\n")
            self.assertIn(f"ovq-chat: {folder}: Is a directory\n", run.stderr)

    def test_undo_takes_messages_back(self):
        self.run_chat("--interactive", "--system", "S", stdin="Hi\nBye\n/undo\nYo\n/undo\n/undo\nNew\n")
        conversations = [turn.prompt.conversation for turn in self.server.turns]
        self.assertEqual(
            [([m.content for m in c.messages][-1], len(c.messages), c.known) for c in conversations],
            [("Hi", 2, 0), ("Bye", 4, 3), ("Yo", 4, 3), ("New", 2, 0)],
        )
        self.assertEqual(conversations[2].messages[2], conversations[1].messages[2])

    def test_asking_for_the_model_does_not_change_how_turns_are_sent(self):
        self.server.has_chat_template = True
        run = self.run_chat("--interactive", stdin="abc\n/model\ndef\n")
        self.assertEqual((run.returncode, run.stdout), (0, "3:abc\n11:def\n"), run.stderr)
        self.assertIn("chat template: yes", run.stderr)

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
        # the program knows that the turn is over, too
        self.assertEqual(process.stderr.read(2), b"> ")
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        self.assertEqual(process.wait(timeout=30), 130)
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


class ChatErrors(WithChat):
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
        self.check(self.run_chat("--prompt=a", "--regex=a", f"--grammar={__file__}"), 2,
                   "give one of --json-schema, --grammar and --regex")
        self.assertEqual(self.run_chat("--help").returncode, 0)

    def test_question_that_cannot_be_sent(self):
        self.check(self.run_chat("--file=/does/not/exist"), 1, "/does/not/exist: No such file")
        run = subprocess.run(
            self.chat_command(), input=b"abc\xff", capture_output=True, timeout=60
        )
        self.assertEqual(run.returncode, 1)
        self.assertIn(b"not valid UTF-8 at byte 3", run.stderr)

    def test_texts_that_no_message_holds_are_wrong_flags(self):
        text = b"caf\xe9"
        with tempfile.NamedTemporaryFile() as file:
            file.write(text)
            file.flush()
            for flag, value in (("--system", text), ("--session", text), ("--memory", text), ("--stop", text),
                                ("--regex", text), ("--grammar", file.name.encode())):
                run = subprocess.run([*self.chat_command("--prompt", "x"), flag, value], capture_output=True,
                                     timeout=60)
                self.assertEqual(run.returncode, 2, run.stderr)
                self.assertTrue(run.stderr.startswith(f"ovq-chat: {flag}: expected".encode()), run.stderr)
                self.assertEqual(run.stderr.count(b"\n"), 1, run.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True, help="CMake's build folder")
    options, rest = parser.parse_known_args()
    CHAT = os.path.join(os.path.abspath(options.build), "bin", "ovq-chat")
    unittest.main(argv=[sys.argv[0], *rest])
