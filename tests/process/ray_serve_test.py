"""deploy/ray/ovq_serve.py without Ray: a replica's server and its ASGI application.

usage: ray_serve_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import asyncio
import json
import os
import sys
import time
import unittest

from server_process import ROOT

sys.path.insert(0, os.path.join(ROOT, "deploy", "ray"))

import ovq_serve

BINARY = None
MODEL = os.path.join(ROOT, "models", "python-bytes")
PROMPT = {"prompt": "def close(self):\n", "max_tokens": 40, "seed": 1}


class Replica(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        ovq_serve.server = ovq_serve.Server(BINARY, MODEL, "--metrics-address=", "--threads=1", "--state-memory=64M")
        cls.addClassCleanup(ovq_serve.server.stop)

    def call(self, method, path, body=b"", headers=(), leave_after=None):
        """Returns (status, headers, parts); the client goes after so many parts."""
        async def run():
            gone, sent, incoming = asyncio.Event(), [], asyncio.Queue()
            half = len(body) // 2
            incoming.put_nowait({"type": "http.request", "body": body[:half], "more_body": True})
            incoming.put_nowait({"type": "http.request", "body": body[half:]})

            async def receive():
                if not incoming.empty():
                    return incoming.get_nowait()
                await gone.wait()
                return {"type": "http.disconnect"}

            async def send(message):
                sent.append(message)
                if leave_after is not None and len(sent) > leave_after:
                    gone.set()

            scope = {"type": "http", "method": method, "path": path, "query_string": b"",
                     "headers": [(b"content-type", b"application/json"), *headers]}
            await asyncio.wait_for(ovq_serve.application(scope, receive, send), 60)
            start, *rest = sent
            return start["status"], dict(start["headers"]), [part["body"] for part in rest]
        return asyncio.run(run())

    def complete(self, headers=(), **fields):
        return self.call("POST", "/v1/completions", json.dumps({**PROMPT, **fields}).encode(), headers)

    def test_answers_come_whole_or_in_parts(self):
        status, headers, parts = self.complete([(b"ovq-session", b"blue")])
        self.assertEqual(status, 200, parts)
        self.assertEqual(int(headers[b"content-length"]), len(b"".join(parts)))
        text = json.loads(b"".join(parts))["choices"][0]["text"]
        self.assertTrue(text)
        status, headers, parts = self.complete(stream=True)
        self.assertEqual(status, 200)
        self.assertTrue(headers[b"content-type"].startswith(b"text/event-stream"))
        self.assertNotIn(b"transfer-encoding", headers)
        events = [line[6:] for line in b"".join(parts).split(b"\n") if line.startswith(b"data: {")]
        self.assertGreater(len(parts), 2, "they come as they are made")
        chunks = [json.loads(event)["choices"] for event in events]
        self.assertEqual("".join(choice[0]["text"] for choice in chunks if choice), text)

    def test_errors_and_health_are_the_servers(self):
        self.assertEqual(self.call("GET", "/health")[0], 200)
        self.assertEqual(self.call("GET", "/nowhere")[0], 404)
        self.assertEqual(self.complete(max_tokens=-1)[0], 400)

    def test_a_client_that_goes_ends_its_answer(self):
        body = json.dumps({**PROMPT, "max_tokens": 10**6, "stream": True, "ignore_eos": True}).encode()
        status, _, parts = self.call("POST", "/v1/completions", body, leave_after=3)
        self.assertEqual(status, 200)
        self.assertLess(len(parts), 1000)

    def test_it_starts_with_the_lifespan(self):
        async def run():
            sent, messages = [], iter(["lifespan.startup", "lifespan.shutdown"])

            async def receive():
                return {"type": next(messages)}

            async def send(message):
                sent.append(message["type"])
            await ovq_serve.application({"type": "lifespan"}, receive, send)
            return sent
        self.assertEqual(asyncio.run(run()), ["lifespan.startup.complete", "lifespan.shutdown.complete"])


class Process(unittest.TestCase):
    def test_it_drains_and_ends(self):
        server = ovq_serve.Server(BINARY, MODEL, "--metrics-address=", "--threads=1", "--state-memory=64M")
        self.assertTrue(server.alive())
        begin = time.monotonic()
        self.assertEqual(server.stop(), 0)
        self.assertLess(time.monotonic() - begin, ovq_serve.DRAIN_SECONDS + ovq_serve.MARGIN_SECONDS)
        self.assertFalse(server.alive())
        self.assertEqual(server.stop(), 0, "again")

    def test_a_start_that_fails_says_so(self):
        with self.assertRaisesRegex(RuntimeError, "ended with 1"):
            ovq_serve.Server(BINARY, "/nowhere", "--metrics-address=")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BINARY = os.path.join(os.path.abspath(options.build), "bin", "ovq-server")
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
