"""The log of the real ovq-server: every line, with hostile input, and with a stderr that nobody
reads.

usage: logs_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

try:
    import grpc
except ImportError as error:
    print(f"SKIPPED: {error}; install python3-grpcio")
    sys.exit(0)
for tool in ("protoc", "grpc_python_plugin"):
    if shutil.which(tool) is None:
        print(f"SKIPPED: no {tool}; install what deploy/packages.txt lists")
        sys.exit(0)

from certificates import write_tenants
from server_process import ROOT, ServerProcess, load_stubs, wait_for
from tiny_model import write_tiny_model

sys.path.insert(0, os.path.join(ROOT, "clients", "python"))
from ovq_client import Client, OvqError

TOKEN, WRONG_TOKEN = "alice-0123456789-abcdefghij", "mallory-0123456789-abcdefghij"
SECRET = "zanzibar"  # occurs in everything that a client may send
SECRET_ID = 987654321
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
BINARY = CHAT = FOLDER = pb = rpc = None

EVERY_LINE = {"time", "level", "kind", "message"}
EVERY_CALL = {"method", "code", "duration_ms", "request_id", "trace_id", "span_id", "sampled", "peer"}
SOME_CALLS = {"error", "tenant", "session_id", "turn", "turns", "prompt_tokens", "generated_tokens",
              "queue_ms", "ttft_ms", "finish_reason", "parent_id", "suppressed"}


def setUpModule():
    global FOLDER, pb, rpc
    FOLDER = tempfile.mkdtemp(prefix="ovq_logs_test_")
    write_tiny_model(path("tiny"))
    os.mkdir(path("stubs"))
    pb, rpc = load_stubs(path("stubs"))
    write_tenants(path("tenants.json"), {"alice": TOKEN})


def tearDownModule():
    shutil.rmtree(FOLDER)


def path(name):
    return os.path.join(FOLDER, name)


def serve(*flags):
    return ServerProcess(BINARY, path("tiny"), "--state-memory", "256M", *flags)


def end(server):
    """Drains the server; returns its log."""
    server.terminate()
    assert server.wait() == 0, server.stderr()
    return server.stderr()


def send_bytes(server, data):
    """Sends bytes that are not gRPC; returns when the server closes the connection, or after a
    second."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=1) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(data)
            while connection.recv(4096):
                pass


class Hostile:
    """Calls that carry SECRET in every field that a client can set."""

    def __init__(self, server):
        self.server = server
        self.channel = grpc.insecure_channel(server.address)
        self.inference = rpc.InferenceServiceStub(self.channel)
        self.sessions = rpc.SessionServiceStub(self.channel)
        self.codes = []

    def call(self, method, request, token=TOKEN, metadata=(), timeout=30):
        """Returns the answers; none if the call failed."""
        metadata = (*metadata, *((("authorization", f"Bearer {token}"),) if token else ()))
        try:
            result = method(request, timeout=timeout, metadata=metadata)
            answers = list(result) if hasattr(result, "__iter__") else [result]
            self.codes.append(grpc.StatusCode.OK)
            return answers
        except grpc.RpcError as error:
            self.codes.append(error.code())
            return []

    def prompts(self):
        """Sends many invalid requests, then a valid one; returns its text."""
        call, inference = self.call, self.inference
        text = pb.Prompt(text=f"{SECRET} \x00\x1b[2J\n\"}}{{ ä\u2028 " * 20)
        ids = pb.Prompt(token_ids=pb.TokenIds(ids=[1, SECRET_ID]))
        few = pb.StopConditions(max_tokens=40, stop_strings=[SECRET])
        answers = call(inference.Generate, pb.GenerateRequest(prompt=text, stop=few))
        call(inference.Generate, pb.GenerateRequest(prompt=ids))
        call(inference.Generate, pb.GenerateRequest(prompt=text, session_id=SECRET))
        call(inference.Generate, pb.GenerateRequest(
            prompt=text, stop=pb.StopConditions(stop_token_ids=[SECRET_ID])))
        for bias in ({SECRET_ID: 1.0}, {77: 987654336.0}):
            call(inference.Generate, pb.GenerateRequest(
                prompt=text, sampling=pb.SamplingParams(logit_bias=bias)))
        call(inference.Generate, pb.GenerateRequest(
            prompt=text, stop=pb.StopConditions(stop_strings=[SECRET * 1000])))
        self.deadline(text)
        call(inference.Score, pb.ScoreRequest(prompt=text))
        call(inference.Tokenize, pb.TokenizeRequest(text=SECRET))
        call(inference.Detokenize, pb.DetokenizeRequest(token_ids=[SECRET_ID]))
        return "".join(answer.chunk.text for answer in answers)

    def deadline(self, text):
        """Sends a request that ends by its deadline. On a busy machine the server may hear of it so late that its
        client has gone before, which makes another line: then the call is repeated."""
        endless = pb.GenerateRequest(prompt=text, stop=pb.StopConditions(max_tokens=100_000_000, ignore_eos=True))
        for _ in range(10):
            ended = self.server.stderr().count("call ended")
            self.call(self.inference.Generate, endless, timeout=0.5)
            with contextlib.suppress(AssertionError):  # the server may not have heard of it at all
                wait_for(lambda: self.server.stderr().count("call ended") > ended, seconds=5)
            if '"DEADLINE_EXCEEDED"' in self.server.stderr():
                return

    def names(self):
        call, inference, sessions = self.call, self.inference, self.sessions
        for session in (SECRET, SECRET * 10_000, "\x00\n", ""):
            call(sessions.GetSession, pb.GetSessionRequest(session_id=session))
            call(sessions.DeleteSession, pb.DeleteSessionRequest(session_id=session))
        call(sessions.ListSessions, pb.ListSessionsRequest(page_token=SECRET))
        info = pb.GetModelInfoRequest()
        call(inference.GetModelInfo, info, token=None)
        call(inference.GetModelInfo, info, token=WRONG_TOKEN)
        call(inference.GetModelInfo, info, token=f"{SECRET} {SECRET}")
        for key in ("x-request-id", "traceparent", "tracestate", "ovq-tenant", "user-agent", SECRET):
            call(inference.GetModelInfo, info, metadata=((key, f'{SECRET}"}}{{ \\'),))
            call(inference.GetModelInfo, info, metadata=((key, SECRET * 500),))

    def raw(self):
        """Sends bytes that are no message, or not UTF-8."""
        for data in (SECRET.encode(), b"\x0a\x0a\x0a\x08" + SECRET.encode(),
                     b"\x0a\x04\x0a\x02\xff\xfe", b"\xf8\x06\x01" + SECRET.encode()):
            for name in ("Generate", "Score", "NoSuchMethod" + SECRET):
                kind = self.channel.unary_stream if name == "Generate" else self.channel.unary_unary
                self.call(kind(f"/ovq.v1.InferenceService/{name}"), data)

    def chat(self):
        def requests():
            yield pb.ChatRequest(open=pb.ChatOpen())
            yield pb.ChatRequest(turn=pb.ChatTurn(prompt=pb.Prompt(text=SECRET),
                                                  stop=pb.StopConditions(max_tokens=3)))
            # Too early: the first turn may still run.
            yield pb.ChatRequest(turn=pb.ChatTurn(prompt=pb.Prompt(text=SECRET)))
            yield pb.ChatRequest(turn=pb.ChatTurn(prompt=pb.Prompt(
                token_ids=pb.TokenIds(ids=[SECRET_ID]))))
        self.call(self.inference.Chat, requests())


class JsonLog(unittest.TestCase):
    def check_lines(self, text):
        """Parses the lines as objects and checks each against the documentation."""
        self.assertTrue(text.isascii())
        lines = [json.loads(line) for line in text.splitlines()]
        self.assertEqual(text.count("\n"), len(lines))
        for line in lines:
            self.assertLessEqual(EVERY_LINE, line.keys())
            self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
            self.assertIn(line["level"], ("debug", "info", "warning", "error"))
            if line["kind"] not in ("call", "turn"):
                continue
            known = EVERY_LINE | EVERY_CALL | SOME_CALLS
            self.assertLessEqual(line.keys(), known, line)
            if line["message"] != "call began":
                self.assertLessEqual(EVERY_CALL, line.keys())
                self.assertEqual("error" in line, line["code"] != "OK", line)
        return lines

    def test_hostile_input(self):
        flags = ("--log-format", "json", "--log-level", "debug", "--log-rate", "100000",
                 "--tenants", path("tenants.json"))
        with serve(*flags) as server:
            hostile = Hostile(server)
            answer = hostile.prompts()
            hostile.names()
            hostile.raw()
            hostile.chat()
            for data in (SECRET.encode() * 100, b"\xff" * 5000,
                         b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SECRET.encode() * 50,
                         f"GET /{SECRET} HTTP/1.1\r\nHost: x\r\n\r\n".encode()):
                send_bytes(server, data)
            page = server.metrics()
            hostile.channel.close()
            text = end(server)
        lines = self.check_lines(text)
        for secret in (SECRET, SECRET.encode().hex(), str(SECRET_ID), "987654336", TOKEN, WRONG_TOKEN):
            self.assertNotIn(secret, text)
        self.assertGreater(len(answer), 8)
        self.assertNotIn(json.dumps(answer)[1:-1], text)
        ended = [line["code"] for line in lines if line["message"] == "call ended"]
        for code in ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNAUTHENTICATED", "DEADLINE_EXCEEDED"):
            self.assertIn(getattr(grpc.StatusCode, code), hostile.codes)
            self.assertIn(code, ended)
        written = re.search(r'ovq_log_lines_total{level="info"} (\d+)', page).group(1)
        self.assertGreater(int(written), 20)
        self.assertEqual(lines[-1]["message"], "stopped")
        late = [line for line in lines if line.get("code") == "DEADLINE_EXCEEDED"]
        self.assertEqual({line["level"] for line in late}, {"warning"})
        self.assertEqual({line["tenant"] for line in lines if line.get("prompt_tokens")}, {"alice"})

    def test_ids_lead_from_a_client_to_the_line(self):
        with serve("--log-format", "json") as server:
            header = ("traceparent", f"00-{TRACE}-{PARENT}-01")
            with Client(server.address, metadata=(header,)) as client:
                with self.assertRaises(OvqError) as caught:
                    list(client.generate("", max_tokens=1))
                self.assertEqual(caught.exception.info.field, "prompt")
                self.assertEqual(client.model_info().limits.max_completions, 64)
            chat = subprocess.run([CHAT, "--server", server.address, "--session", "0" * 32],
                                  input="hi\n", capture_output=True, text=True, timeout=60)
            self.assertEqual(chat.returncode, 1, chat.stderr)
            shown = re.search(r"^ovq-chat: NOT_FOUND: .* \(request ([0-9a-f]{32})\)$", chat.stderr,
                              re.MULTILINE)
            self.assertIsNotNone(shown, chat.stderr)
            command = subprocess.run(
                [sys.executable, "-m", "ovq_client", "--server", server.address, "generate",
                 "--text", ""], capture_output=True, text=True, timeout=60,
                env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "clients", "python")})
            told = re.search(r"\(request ([0-9a-f]{32})\)$", command.stderr.strip())
            self.assertIsNotNone(told, command.stderr)
            lines = {line["request_id"]: line for line in self.check_lines(end(server))
                     if line["message"] == "call ended"}
        line = lines[caught.exception.request_id]
        self.assertEqual((line["trace_id"], line["parent_id"], line["sampled"]), (TRACE, PARENT, True))
        self.assertEqual(line["code"], "INVALID_ARGUMENT")
        self.assertEqual(lines[shown.group(1)]["code"], "NOT_FOUND")
        self.assertEqual(lines[told.group(1)]["method"], "Generate")

    def test_failed_start_is_a_line_too(self):
        run = subprocess.run([BINARY, "--model", path("nothing"), "--log-format", "json"],
                             capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, 1)
        lines = self.check_lines(run.stderr)
        self.assertEqual(lines[-1]["level"], "error")
        self.assertIn(path("nothing"), lines[-1]["message"])


class TextLog(unittest.TestCase):
    def test_lines(self):
        with serve("--log-requests", "errors") as server, Client(server.address) as client:
            list(client.generate("hello", max_tokens=1))
            with self.assertRaises(OvqError):
                list(client.generate("", max_tokens=1))
            text = end(server)
        for line in text.splitlines():
            self.assertTrue(line.startswith("ovq-server: "), line)
        calls = [line for line in text.splitlines() if "call ended" in line]
        self.assertEqual(len(calls), 1, text)
        self.assertRegex(calls[0], r'^ovq-server: call ended method=Generate code=INVALID_ARGUMENT '
                                   r'error="prompt: expected at least one token" .*request_id=')


class StuckReader(unittest.TestCase):
    def test_calls_go_on(self):
        read_end, write_end = os.pipe()
        command = [BINARY, "--model", path("tiny"), "--state-memory", "256M", "--listen",
                   "127.0.0.1:0", "--metrics-address", "127.0.0.1:0", "--log-level", "debug",
                   "--log-rate", "1000000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=write_end, text=True) as process:
            os.close(write_end)
            try:
                port = re.fullmatch(r"listening on 127\.0\.0\.1:(\d+)\n",
                                    process.stdout.readline()).group(1)
                begun = ""
                while "metrics on" not in begun or not begun.endswith("\n"):
                    begun += os.read(read_end, 65536).decode()
                # From here on nobody reads the pipe.
                url = re.search(r"metrics on (http://\S+)", begun).group(1)
                blocked = 0
                with Client(f"127.0.0.1:{port}") as client:
                    end_time = time.monotonic() + 40
                    while blocked == 0 and time.monotonic() < end_time:
                        for _ in range(200):
                            client.model_info()
                        with urllib.request.urlopen(url, timeout=10) as response:
                            page = response.read().decode()
                        blocked = int(re.search(
                            r'ovq_log_lines_suppressed_total{reason="blocked"} (\d+)', page).group(1))
                    self.assertGreater(blocked, 0)
                    self.assertGreater(len(list(client.generate("still here", max_tokens=5))), 2)
                process.terminate()
                self.assertEqual(process.wait(timeout=30), 0)
            finally:
                if process.poll() is None:
                    process.kill()
                os.close(read_end)


class ReadingALog(unittest.TestCase):
    def test_what_is_written_meanwhile_overwrites_nothing(self):
        """Tests ServerProcess, on which all log tests depend."""
        busy = path("busy")
        with open(busy, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\necho first >&2\necho listening on 127.0.0.1:1\n"
                       "for i in $(seq 20000); do echo $i >&2; done\nread end\n")
        os.chmod(busy, 0o755)
        with ServerProcess(busy, "none") as server:
            last = ""
            while not last.endswith("\n20000\n"):
                last = server.stderr()
                self.assertEqual(last[:6], "first\n")
            self.assertEqual(last.split("\n")[1:-1], [str(i) for i in range(1, 20001)])


def main():
    global BINARY, CHAT
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    arguments, rest = parser.parse_known_args()
    BINARY = os.path.join(arguments.build, "bin", "ovq-server")
    CHAT = os.path.join(arguments.build, "bin", "ovq-chat")
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
