"""Tests the server end to end on a device, with ovq-chat as its client.

usage: serve_check.py --bin FOLDER --model FOLDER [--server PROGRAM] [--device cuda] [--tokens 64]

In float32 a greedy answer equals the cpu's, also when repeated and among other requests; with int8 states
it is close to the cpu's; the log and the metrics say which product of matrices every shape runs;
SIGTERM lets a running answer finish and ends the server with 0. With default flags gRPC, HTTP and the
metrics page answer. Standard library only.
"""

import argparse
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import unittest
import urllib.request

from server_program import Server

PROMPT = "import os\n\n\ndef read_lines(path):\n"
CHAT = SERVER = MODEL = DEVICE = N_TOKENS = None


class Chats(Server):
    """A server in float32, and ovq-chat as its client."""

    def __init__(self, device, states="f32"):
        super().__init__(SERVER, MODEL, device, "--compute-dtype", "f32", "--state-dtype", states,
                         "--state-memory", "512M")

    def answer(self, prompt, n_tokens=None):
        """A greedy answer: its text, and "id<tab>log-probability" of every token."""
        chat = start_chat(self, prompt, n_tokens or N_TOKENS)
        out, err = chat.communicate(timeout=60)
        if chat.returncode != 0:
            raise AssertionError(f"ovq-chat: exit {chat.returncode}: {err}; {self.text()}")
        return out, re.findall(r"^\d+\t\S+$", err, flags=re.MULTILINE)


def start_chat(server, prompt, n_tokens):
    return subprocess.Popen(
        [CHAT, "--server", server.address, "--prompt", prompt,
         "--max-tokens", str(n_tokens), "--temperature", "0", "--ignore-eos", "--logprobs"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Listeners(unittest.TestCase):
    """Default flags, each address in use. A library's thread-local storage may leave threads with small
    stacks none at all, so this starts every thread that a server has."""

    def test_grpc_http_and_metrics_answer(self):
        with Server(SERVER, MODEL, DEVICE) as server:
            chat = start_chat(server, PROMPT, N_TOKENS)
            text, errors = chat.communicate(timeout=60)
            self.assertEqual(chat.returncode, 0, errors + server.text())
            request = urllib.request.Request(
                server.url("http") + "/v1/completions", headers={"Content-Type": "application/json"},
                data=json.dumps({"model": os.path.basename(os.path.normpath(MODEL)), "prompt": PROMPT,
                                 "max_tokens": N_TOKENS, "temperature": 0, "ignore_eos": True}).encode())
            with urllib.request.urlopen(request, timeout=60) as reply:
                answer = json.load(reply)
            self.assertEqual(answer["usage"]["completion_tokens"], N_TOKENS)
            self.assertEqual(answer["choices"][0]["text"].rstrip(), text.rstrip())
            self.assertIn("\novq_step_duration_seconds_count", server.metrics())


class Serving(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Chats(DEVICE)

    @classmethod
    def tearDownClass(cls):
        cls.server.close()

    def test_the_answer_is_the_cpus(self):
        with Chats("cpu") as cpu:
            expected_text, expected = cpu.answer(PROMPT)
        text, tokens = self.server.answer(PROMPT)
        self.assertEqual(len(tokens), N_TOKENS)
        # Log-probabilities of two devices differ by rounding.
        self.assertEqual([token.split("\t")[0] for token in tokens],
                         [token.split("\t")[0] for token in expected])
        self.assertEqual(text, expected_text)

    def test_log_and_metrics_say_which_product_every_shape_runs(self):
        series = re.findall(r"^ovq_matrix_products{(.*)} (\d+)$", self.server.metrics(), flags=re.MULTILINE)
        products = [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), int(count)) for labels, count in series]
        self.assertGreater(len(products), 3)
        for labels, count in products:
            self.assertIn(labels["product"], ["own", "cuBLASLt"] if DEVICE == "cuda" else ["own", "oneDNN"])
            self.assertIn(f"{count} product{'' if count == 1 else 's'} of {labels['inputs']} inputs and "
                          f"{labels['outputs']} outputs, weights in {labels['weights']}: "
                          f"{labels['product']}: {labels['detail']}", self.server.text())

    def test_the_answer_is_the_same_twice_and_among_others(self):
        alone = self.server.answer(PROMPT)
        self.assertEqual(self.server.answer(PROMPT), alone)
        with concurrent.futures.ThreadPoolExecutor(9) as pool:
            others = [pool.submit(self.server.answer, "class C%d:\n" % i + "    x = 1\n" * (i * N_TOKENS // 2))
                      for i in range(8)]
            among = self.server.answer(PROMPT)
            for other in others:
                self.assertEqual(len(other.result()[1]), N_TOKENS)
        self.assertEqual(among, alone)


class Int8States(unittest.TestCase):
    """Where two devices differ in a last bit, one may round a channel of a row up and the other down."""

    def test_the_answer_is_near_the_cpus_and_the_same_twice_and_among_others(self):
        with Chats("cpu", "i8") as cpu:
            _, expected = cpu.answer(PROMPT)
        with Chats(DEVICE, "i8") as server:
            text, tokens = server.answer(PROMPT)
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                others = [pool.submit(server.answer, "class C%d:\n" % i + "    x = 1\n" * (i * N_TOKENS // 2))
                          for i in range(3)]
                among = server.answer(PROMPT)
                for other in others:
                    self.assertEqual(len(other.result()[1]), N_TOKENS)
            self.assertEqual(among, (text, tokens))
        self.assertEqual(len(tokens), N_TOKENS)
        same = 0
        for mine, theirs in zip(tokens, expected):
            if mine.split("\t")[0] != theirs.split("\t")[0]:
                break
            self.assertAlmostEqual(float(mine.split("\t")[1]), float(theirs.split("\t")[1]), delta=0.1)
            same += 1
        self.assertGreaterEqual(same, N_TOKENS // 4, (tokens, expected))


class Stopping(unittest.TestCase):
    def test_sigterm_lets_the_answer_finish(self):
        with Chats(DEVICE) as server:
            expected = server.answer(PROMPT, 5 * N_TOKENS)[0]
            chat = start_chat(server, PROMPT, 5 * N_TOKENS)
            # From the pipe itself, as Python's file would keep what it reads ahead from communicate().
            first = os.read(chat.stdout.fileno(), 1).decode()
            server.process.send_signal(signal.SIGTERM)
            # Draining ends the conversation after its turn, so ovq-chat's status says nothing.
            rest, _ = chat.communicate(timeout=60)
            self.assertEqual(first + rest, expected)
            self.assertEqual(server.process.wait(timeout=60), 0, server.text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", required=True, help="folder of ovq-chat and the server")
    parser.add_argument("--server", help="default: ovq-server of --bin")
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=64)
    options, rest = parser.parse_known_args()
    CHAT = os.path.join(options.bin, "ovq-chat")
    SERVER = options.server or os.path.join(options.bin, "ovq-server")
    MODEL, DEVICE, N_TOKENS = options.model, options.device, options.tokens
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
