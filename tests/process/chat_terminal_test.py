"""ovq-chat on a terminal (tmux): sends keys and pastes, resizes the window and reads the screen.

usage: chat_terminal_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from client_test_util import WithServer
from ovq_client import Client

if shutil.which("tmux") is None:
    print("SKIPPED: no tmux here")
    sys.exit(0)

CHAT = None  # path of ovq-chat, set by main
HIDDEN_CODES = re.compile(r"\033\[[0-9;]*m")


class Terminal:
    """A program in a tmux window."""

    def __init__(self, folder, command, columns=140, rows=30, **env):
        socket = os.path.join(tempfile.mkdtemp(dir=folder), "tmux")
        self._tmux = ["tmux", "-S", socket, "-f", "/dev/null"]
        settings = [f"{name}={value}" for name, value in env.items()]
        # The exit status stays visible on the screen.
        shell = " ".join(["env", *settings, *command]) + "; echo \"exit status $?\"; sleep 1000"
        self.do("new-session", "-d", "-x", str(columns), "-y", str(rows), shell)

    def do(self, *arguments, **more):
        return subprocess.run([*self._tmux, *arguments], check=True, capture_output=True, text=True,
                              timeout=30, **more)

    def type(self, text, *keys):
        """Types characters, then keys by tmux's names."""
        if text:
            self.do("send-keys", "-l", text)
        if keys:
            self.do("send-keys", *keys)

    def paste(self, text):
        self.do("load-buffer", "-", input=text)
        self.do("paste-buffer", "-p")  # as a bracketed paste, if the program has enabled that

    def screen(self, *flags):
        """Returns the screen's lines, without the empty ones at the end."""
        lines = self.do("capture-pane", "-p", *flags).stdout.split("\n")
        return "\n".join(line.rstrip() for line in lines).rstrip("\n")

    def wait_for(self, pattern, seconds=20):
        """Waits until the end of the screen matches; returns the match."""
        end = time.monotonic() + seconds
        while True:
            screen = self.screen()
            found = re.search(pattern + r"\Z", screen)
            if found:
                return found
            if time.monotonic() > end:
                raise AssertionError(f"no {pattern!r} at the end of:\n{screen}")
            time.sleep(0.02)

    def close(self):
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, timeout=30)


class Person(WithServer):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def chat(self, *flags, **window):
        terminal = Terminal(self.folder, [CHAT, "--server", self.server.address, *flags],
                            XDG_STATE_HOME=self.folder, **window)
        self.addCleanup(terminal.close)
        self.terminal = terminal
        return terminal

    def questions(self):
        return [turn.prompt.text for turn in self.server.turns]

    def test_banner_and_commands(self):
        terminal = self.chat()
        banner = terminal.wait_for(r"fake \(.*\) at (\S+)\nsession (\S+)\n(.*)\n(.*)\n\n>")
        self.assertEqual(banner[1], self.server.address)
        self.assertEqual(list(self.server.sessions), [banner[2]])
        self.assertIn("The model goes on from your text", banner[3])
        self.assertIn("/help", banner[4])
        terminal.type("/help", "Enter")
        shown = terminal.wait_for(r"> /help\n((.+\n)+)>")[1]
        for command in ("/set", "/stats", "/model", "/undo", "/reset", "/fork", "/save", "/load",
                        "/quit"):
            self.assertIn(command, shown)
        terminal.type("/frobnicate now", "Enter")
        terminal.wait_for(r"no command /frobnicate; /help lists them(.|\n)*>")
        terminal.type("/stats now", "Enter")
        terminal.wait_for(r"/stats takes nothing else\n>")
        terminal.type("/save", "Enter")
        terminal.wait_for(r"/save needs FILE\n>")
        terminal.type("/model", "Enter")
        terminal.wait_for(r"\[model fake \|(.|\n)*\]\n>")
        terminal.type("/stats", "Enter")
        terminal.wait_for(r"\| position 0 \|(.|\n)*\]\n>")
        self.assertEqual(self.server.turns, [])  # no question reached the model
        terminal.type("//usr", "Enter")
        terminal.wait_for(r"> //usr\n4:/usr\n\[prompt 4 tokens(.|\n)*\]\n\n>")
        terminal.type("/quit", "Enter")
        terminal.wait_for(r"exit status 0")
        self.assertEqual(self.questions(), ["/usr"])

    def test_settings(self):
        terminal = self.chat("--temperature", "0.5")
        terminal.wait_for(r"\n>")
        (first_session,) = self.server.sessions
        terminal.type("/set max-tokens 3", "Enter")
        terminal.type("/set stop  END", "Enter")
        terminal.type("/set top-k many", "Enter")
        terminal.wait_for(r"--top-k: expected a whole number.*\n.*>")
        terminal.type("/set warmth 1", "Enter")
        terminal.wait_for(r"no setting warmth; /set lists them\n>")
        terminal.type("/set", "Enter")
        shown = terminal.wait_for(r"> /set\n((.+\n)+)>")[1]
        for line in ("max-tokens +3", "temperature +0.5", r"stop +\"END\"", r"top-p +1 \(default\)"):
            self.assertRegex(shown, line)
        terminal.type("hello", "Enter")
        terminal.wait_for(r"\n5:h\n\[(.|\n)*length\]\n\n>")
        terminal.type("/set temperature default", "Enter")
        terminal.type("abc", "Enter")
        terminal.wait_for(r"\| position 14 \| length\]\n\n>")
        first, second = self.server.turns
        self.assertEqual((first.sampling.temperature, first.stop.max_tokens), (0.5, 3))
        self.assertEqual(list(first.stop.stop_strings), ["END"])
        self.assertFalse(second.sampling.HasField("temperature"))
        # Settings that the server would refuse do not end the conversation.
        self.server.refuse_sampling = "top_p: expected (0, 1]"
        terminal.type("/set top-p 2", "Enter")
        terminal.wait_for(r"ovq-chat: top_p: expected \(0, 1\]\n>")
        self.server.refuse_sampling = None
        terminal.type("/reset", "Enter")
        terminal.wait_for(r"\[a new session\]\n>")
        terminal.type("abc", "Enter")
        terminal.wait_for(r"\n3:a\n\[(.|\n)*position 6 \| length\]\n\n>")
        self.assertFalse(self.server.turns[2].sampling.HasField("top_p"))
        self.assertNotIn(first_session, self.server.sessions)  # the first session was deleted

    def test_editing_and_history(self):
        terminal = self.chat()
        terminal.wait_for(r"\n>")
        terminal.type("hello word", "Left")
        terminal.type("l", "Home", "Delete")
        terminal.type("H", "End")
        terminal.type("!!", "BSpace")
        terminal.wait_for(r"\n> Hello world!")
        terminal.type("", "Enter")
        terminal.wait_for(r"> Hello world!\n12:o world!\n\[(.|\n)*\]\n\n>")
        terminal.type("größe 漢字 😀x", "BSpace", "Left", "Left", "BSpace")
        terminal.wait_for(r"\n> größe 漢 😀")
        terminal.type("", "Enter")
        terminal.wait_for(r"\n\d+:röße 漢 😀\n\[(.|\n)*\]\n\n>")
        terminal.type("", "Up", "Up")
        terminal.wait_for(r"\n> Hello world!")
        terminal.type("", "Down")
        terminal.wait_for(r"\n> größe 漢 😀")
        terminal.type("", "C-u")
        terminal.type("two", "M-Enter")
        terminal.type("lines", "Enter")
        terminal.wait_for(r"> two\nlines\n(.|\n)*\]\n\n>")
        terminal.type("", "C-d")
        terminal.wait_for(r"exit status 0")
        self.assertEqual(self.questions(), ["Hello world!", "größe 漢 😀", "two\nlines"])
        terminal.close()
        history = Path(self.folder, "ovq-chat", "history")
        self.assertEqual(history.stat().st_mode & 0o777, 0o600)
        again = self.chat()
        again.wait_for(r"\n>")
        again.type("", "Up", "Up")
        again.wait_for(r"\n> größe 漢 😀")
        again.close()
        kept = history.read_bytes()
        without = self.chat("--history", "''")
        without.wait_for(r"\n>")
        without.type("", "Up")
        without.type("secret", "Enter")
        without.wait_for(r"\n6:secret\n(.|\n)*\]\n\n>")
        self.assertEqual(history.read_bytes(), kept)

    def test_pastes_arrive_whole(self):
        terminal = self.chat()
        terminal.wait_for(r"\n>")
        line = "".join(f"word{i:05} " for i in range(1000))
        self.assertEqual(len(line), 10000)
        terminal.paste(line)
        terminal.wait_for(r"word0\n?0\n?9\n?9\n?9")
        terminal.type("", "Left")
        terminal.type("!", "Enter")
        terminal.wait_for(r"\d+:\w*00999!\s+\[(.|\n)*\]\n\n>")
        block = "def f(x):\n\treturn x\n\n# ende\n"
        terminal.paste(block)
        terminal.wait_for(r"\n> def f\(x\):\n +return x\n\n# ende")
        terminal.type("", "Enter")
        terminal.wait_for(r"\n\d+:\n# ende\n\[(.|\n)*\]\n\n>")
        self.assertEqual(self.questions(), [line[:-1] + "! ", block])

    def test_interrupts(self):
        terminal = self.chat()
        terminal.wait_for(r"\n>")
        terminal.type("slow", "Enter")
        terminal.wait_for(r"\n\.+")
        terminal.type("meanwhile", "C-c")  # input typed during an answer is not echoed
        shown = terminal.wait_for(r"\n(\.+)\n\[(.|\n)*cancelled\]\n\n> meanwhile")
        self.assertNotIn("meanwhile", terminal.screen().split("cancelled")[0])
        terminal.type("", "C-c")  # drops the line
        terminal.wait_for(r"> meanwhile\n>")
        terminal.type("abc", "Enter")
        terminal.wait_for(r"\n\d+:(slow)?abc\n\[(.|\n)*stop\]\n\n>")
        self.assertEqual(self.questions(), ["slow", "abc"])
        self.assertIsNotNone(shown)
        terminal.type("", "C-c")
        terminal.wait_for(r"\[Ctrl-C once more.*\n(.*\n)?>")
        terminal.type("", "C-c")
        terminal.wait_for(r"exit status 130")

    def test_an_interrupt_just_behind_an_answer_is_for_that_answer(self):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(CHAT, [CHAT, "--server", self.server.address, "--logprobs", "--history", ""],
                      {"TERM": "xterm", "HOME": self.folder})
        self.addCleanup(os.close, terminal)

        def read_until(text):
            got = b""
            while text not in got:
                self.assertTrue(select.select([terminal], [], [], 20)[0], got)
                got = got[-500:] + os.read(terminal, 1)

        try:
            read_until(b"> ")
            os.write(terminal, b"long\r")
            # The list comes behind the answer, and does not fit into a terminal that is not read.
            read_until(b"-0.250000")
            os.write(terminal, b"\x03")
            time.sleep(0.5)
            read_until(b"stop]")
            read_until(b"> ")
            os.write(terminal, b"abc\r")
            read_until(b"stop]")
            self.assertEqual(self.questions(), ["long", "abc"])
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def test_resize_and_a_terminal_that_is_as_it_was(self):
        terminal = self.chat()
        terminal.wait_for(r"\n>")
        text = "one two three four five six seven eight nine ten"
        terminal.type(text)
        terminal.wait_for("\n> " + text)
        terminal.do("resize-window", "-x", "40", "-y", "20")
        terminal.wait_for("\n> " + text[:38] + "\n" + text[38:])
        terminal.type("", "BSpace")
        terminal.wait_for("\n> " + text[:38] + "\n" + text[38:-1])
        terminal.type("", "Enter")
        terminal.wait_for(r"\n\d+: nine te\n\[(.|\n)*\]\n\n>")
        self.assertEqual(terminal.screen().count("> one"), 1)
        terminal.type("/quit", "Enter")
        terminal.wait_for(r"exit status 0")
        terminal.type("seen")
        terminal.wait_for(r"exit status 0\nseen")  # the terminal echoes again

    def test_colours_only_on_a_terminal(self):
        terminal = self.chat()
        terminal.wait_for(r"\n>")
        self.assertRegex(terminal.screen("-e"), r"\033\[1mfake")
        terminal.close()
        plain = self.chat(NO_COLOR="1")
        plain.wait_for(r"\n>")
        self.assertNotRegex(plain.screen("-e"), HIDDEN_CODES)
        run = subprocess.run([CHAT, "--server", self.server.address, "--interactive"], input="a\n",
                             capture_output=True, text=True, timeout=60)
        self.assertEqual((run.stdout, "\033" in run.stderr), ("1:a\n", False))

    def test_roles_where_the_model_has_a_template(self):
        self.server.has_chat_template = True
        terminal = self.chat()
        terminal.wait_for(r"Your turns are messages.*\n.*\n\nyou>")
        terminal.type("Hi", "Enter")
        terminal.wait_for(r"you> Hi\nassistant> 8:\[user\]Hi\n\[(.|\n)*\]\n\nyou>")
        self.assertEqual(len(self.server.turns[0].prompt.conversation.messages), 1)
        terminal.close()
        text = self.chat("--text")
        text.wait_for(r"goes on from your text.*\n.*\n\n>")
        text.close()
        with Client(self.server.address) as client:
            session = client.create_session().session_id
        # A session that is continued has text; a new one in its place has messages.
        again = self.chat("--session", session)
        again.wait_for(r"goes on from your text.*\n.*\n\n>")
        again.type("/reset", "Enter")
        again.wait_for(r"\[a new session\]\nyou>")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True, help="CMake's build folder")
    options, rest = parser.parse_known_args()
    CHAT = os.path.join(os.path.abspath(options.build), "bin", "ovq-chat")
    unittest.main(argv=[sys.argv[0], *rest])
