"""Answers of a real server keep the form that is asked for, over HTTP and gRPC.

usage: constraint_test.py --build BUILD_FOLDER [unittest arguments]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import unittest
from dataclasses import dataclass

from http_client import HttpClient, http_port
from server_process import ROOT, ServerProcess

sys.path.insert(0, os.path.join(ROOT, "clients", "python"))
from ovq_client import Choice, Client, Conversation, Finished, FinishReason, Grammar, OvqError, Regex, UnfinishedAnswer

BIN = None
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", 3]}, "maxItems": 3},
        "next": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["name", "age", "tags", "next"],
    "additionalProperties": False,
}
ADD = {"name": "add", "description": "Adds two numbers.", "strict": True, "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99},
                                     "b": {"enum": [1, 2]}},
    "required": ["a", "b"], "additionalProperties": False}}


@dataclass
class Point:
    x: int
    label: str


class Constraints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = ServerProcess(os.path.join(BIN, "ovq-server"), os.path.join(ROOT, "models", "scripted-chat"),
                                   "--http-listen", "127.0.0.1:0")
        cls.addClassCleanup(cls.server.kill)

    def setUp(self):
        self.http = HttpClient(http_port(self.server))
        self.addCleanup(self.http.close)
        self.client = Client(self.server.address)
        self.addCleanup(self.client.close)

    def post(self, path, status=200, **body):
        got, answer, _ = self.http.post(path, body)
        self.assertEqual(got, status, answer)
        return answer

    def chat(self, text, **fields):
        answer = self.post("/v1/chat/completions", messages=[{"role": "user", "content": text}],
                           **{"max_tokens": 500, **fields})
        return answer["choices"][0]

    def check_person(self, text):
        person = json.loads(text)
        self.assertEqual(list(person), ["name", "age", "tags", "next"])
        self.assertTrue(1 <= len(person["name"]) <= 12, text)
        self.assertTrue(isinstance(person["age"], int) and 0 <= person["age"] <= 150, text)
        self.assertLessEqual(len(person["tags"]), 3)
        self.assertLessEqual({json.dumps(tag) for tag in person["tags"]}, {'"a"', '"b"', "3"})
        self.assertIn(person["next"], (None, True, False))

    def test_every_answer_has_the_schema(self):
        schema = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
        for seed in range(6):
            for fields in ({}, {"chat_template_kwargs": {"enable_thinking": True}, "temperature": 0.3}):
                choice = self.chat("Hello. Who are you?", seed=seed, response_format=schema, **fields)
                if choice["finish_reason"] == "length":  # of a long thought
                    self.assertIn("reasoning_content", choice["message"])
                    continue
                self.check_person(choice["message"]["content"])
            answer = self.post("/v1/completions", prompt="Hello", seed=seed, max_tokens=500, guided_json=PERSON)
            self.check_person(answer["choices"][0]["text"])
            answer = self.post("/v1/responses", input="Hello", max_output_tokens=500,
                               text={"format": {"type": "json_schema", "name": "p", "schema": PERSON}})
            (text,) = (part["text"] for item in answer["output"] if item["type"] == "message"
                       for part in item["content"])
            self.check_person(text)
            answer = self.post("/v1/messages", max_tokens=500, messages=[{"role": "user", "content": "Hi"}],
                               output_config={"format": {"type": "json_schema", "schema": PERSON}})
            self.check_person(answer["content"][-1]["text"])

    def test_strict_tools(self):
        tools = [{"type": "function", "function": ADD}]
        for seed in range(4):
            choice = self.chat("What is 1 + 2?", tools=tools, tool_choice="required", seed=seed)
            if choice["finish_reason"] == "length":
                continue
            self.assertEqual(choice["finish_reason"], "tool_calls")
            for call in choice["message"]["tool_calls"]:
                arguments = json.loads(call["function"]["arguments"])
                self.assertEqual((call["function"]["name"], list(arguments)), ("add", ["a", "b"]))
                self.assertTrue(0 <= arguments["a"] <= 99 and arguments["b"] in (1, 2), arguments)
        bad = json.loads(json.dumps(tools))
        bad[0]["function"]["parameters"]["properties"]["a"] = {"not": {"type": "null"}}
        error = self.post("/v1/chat/completions", 400, messages=[{"role": "user", "content": "Hi"}], tools=bad)["error"]
        self.assertEqual(error["param"], "tools[0].function.parameters")
        self.assertIn("#/properties/a/not", error["message"])
        # A template is not told which tools are strict.
        counts = [self.post("/tokenize", messages=[{"role": "user", "content": "Hi"}],
                            tools=[{"type": "function", "function": {**ADD, "strict": strict}}])["count"]
                  for strict in (True, False)]
        self.assertEqual(counts[0], counts[1])

    def test_python(self):
        for seed in range(4):
            point = self.client.generate_as(Point, "A point: ", seed=seed, max_tokens=2000)
            self.assertTrue(isinstance(point.x, int) and isinstance(point.label, str), point)
            said = self.client.generate_as(
                Choice(["left", "right"]), Conversation([("user", "Hello")]), seed=seed, max_tokens=2000)
            self.assertIn(said, ("left", "right"))
        self.assertRegex(self.client.generate_as(Regex("[a-z]{3}-[0-9]{2}"), "x"), "^[a-z]{3}-[0-9]{2}$")
        self.assertRegex(self.client.generate_as(Grammar('root ::= "<" [ab]{2,4} ">"'), "x"), "^<[ab]{2,4}>$")
        with self.assertRaises(UnfinishedAnswer):
            self.client.generate_as(Regex("[a-z]{30}"), "x", max_tokens=2)
        with self.assertRaisesRegex(OvqError, "sampling.constraint.regex: "):
            self.client.generate_as(Regex("(a"), "x")
        self.assertTrue(self.client.model_info().has_constraints)

    def test_a_session_goes_on_with_the_form(self):
        session = self.client.create_session("x").session_id
        text, reason, prompt = "", None, " "
        while reason != FinishReason.STOP:
            constraint = {"constraint": Regex("([a-z]{40},){2}")} if prompt else {}
            for event in self.client.generate(prompt, session_id=session, max_tokens=7, **constraint):
                text += getattr(event, "text", "")
                reason = event.reason if isinstance(event, Finished) else None
            prompt = None
            self.assertLess(len(text), 100)
        self.assertRegex(text, "^([a-z]{40},){2}$")

    def test_ovq_chat(self):
        run = subprocess.run([os.path.join(BIN, "ovq-chat"), "--server", self.server.address, "--prompt", "x",
                              "--regex", "[0-9]{4}"], capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertTrue(re.fullmatch(r"[0-9]{4}\n?", run.stdout), run.stdout)

    def test_hostile_forms_are_refused_and_the_server_lives(self):
        deep = {}
        for _ in range(10):
            deep = {"anyOf": [deep, {"type": "array", "items": deep}]}
        for fields in (
            {"guided_regex": "(a{1000}){1000}{1000}"}, {"guided_regex": "(" * 5000}, {"grammar": "root ::= root"},
            {"grammar": 'root ::= "a" root'}, {"guided_json": {"$ref": "#"}}, {"guided_json": "{" * 1000},
            {"guided_choice": ["x" * 300000]}, {"guided_json": {"type": "string", "enum": []}}, {"guided_json": {"type": "string", "pattern": "(?=a)"}},
        ):
            error = self.post("/v1/completions", 400, prompt="x", **fields)["error"]
            self.assertEqual(error["param"], next(iter(fields)), error)
        status, _, _ = self.http.post("/v1/completions", {"prompt": "x", "max_tokens": 2, "guided_json": json.dumps(deep)})
        self.assertIn(status, (200, 400))
        self.assertEqual(self.post("/v1/completions", prompt="x", max_tokens=3)["usage"]["completion_tokens"], 3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BIN = os.path.join(options.build, "bin")
    unittest.main(argv=[sys.argv[0], *rest])
