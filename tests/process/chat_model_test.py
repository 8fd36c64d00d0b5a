"""The shipped chat model calls tools through a real server: chats, responses and messages.

usage: chat_model_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from http_client import HttpClient, http_port
from server_process import ROOT, ServerProcess

MODEL = os.path.join(ROOT, "models", "scripted-chat")
BIN = None


def function(name, description, argument):
    return {"name": name, "description": description, "parameters": {
        "type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}}


FUNCTIONS = [function("get_weather", "Get the weather of a city.", "city"),
             function("local_time", "Tell the current time.", "place"),
             function("calculate", "Evaluate an arithmetic expression.", "expression")]
TOOLS = [{"type": "function", "function": each} for each in FUNCTIONS]
FLAT = [{"type": "function", **each} for each in FUNCTIONS]
RESULTS = {"get_weather": '{"temperature": -7, "condition": "foggy"}', "local_time": "21:43",
           "calculate": "69104"}
WEATHER = ("get_weather", {"city": "Oslo"})


def serve(case, *flags):
    server = ServerProcess(os.path.join(BIN, "ovq-server"), MODEL, "--http-listen", "127.0.0.1:0", *flags)
    case.addClassCleanup(server.kill)
    return http_port(server)


def calls_of(message):
    return [(call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls", [])]


def without_ids(message):
    calls = [{name: value for name, value in call.items() if name not in ("id", "index")}
             for call in message.get("tool_calls", [])]
    return {"content": message["content"] or "", "calls": calls, "reasoning": message.get("reasoning_content", "")}


def results_of(message):
    return [{"role": "tool", "tool_call_id": call["id"], "content": RESULTS[call["function"]["name"]]}
            for call in message["tool_calls"]]


def user(text):
    return {"role": "user", "content": text}


class Served(unittest.TestCase):
    FLAGS = ()

    @classmethod
    def setUpClass(cls):
        cls.port = serve(cls, *cls.FLAGS)

    def setUp(self):
        self.http = HttpClient(self.port)
        self.addCleanup(self.http.close)

    def post(self, path, body):
        status, answer, _ = self.http.post(path, body)
        self.assertEqual(status, 200, answer)
        return answer

    def chat(self, messages, **fields):
        body = {"messages": messages, "tools": TOOLS, "temperature": 0, **fields}
        return self.post("/v1/chat/completions", body)["choices"][0]

    def streamed(self, messages, **fields):
        """Returns the choice that a stream's changes add up to."""
        body = {"messages": messages, "tools": TOOLS, "temperature": 0, "stream": True, **fields}
        message, finish, logprobs = {"content": ""}, None, []
        for chunk in self.http.stream("/v1/chat/completions", body):
            choice = chunk["choices"][0]
            finish = choice["finish_reason"] or finish
            logprobs += (choice.get("logprobs") or {}).get("content", [])
            for name, change in choice["delta"].items():
                if name in ("content", "reasoning_content"):
                    message[name] = message.get(name, "") + change
                for call in change if name == "tool_calls" else ():
                    calls = message.setdefault("tool_calls", [])
                    if "id" in call:
                        calls.append(call)
                    else:
                        calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        return {"message": message, "finish_reason": finish, "logprobs": {"content": logprobs}}

    def response(self, said, **fields):
        return self.post("/v1/responses", {"input": said, "tools": FLAT, "temperature": 0, **fields})


class Chats(Served):
    def test_three_turns_with_calls_and_their_results(self):
        messages = [{"role": "system", "content": "You are a helpful assistant."}]
        for said, call, answer in (
                ("What is the weather in Oslo?", WEATHER, "In Oslo it is foggy at -7 degrees."),
                ("What is 1234 * 56?", ("calculate", {"expression": "1234 * 56"}), "1234 * 56 is 69104."),
                ("What time is it in Rome?", ("local_time", {"place": "Rome"}), "In Rome it is 21:43.")):
            messages.append(user(said))
            asked = self.chat(messages)
            self.assertEqual(asked["finish_reason"], "tool_calls")
            self.assertEqual(calls_of(asked["message"]), [call])
            self.assertIsNone(asked["message"]["content"])
            messages += [asked["message"], *results_of(asked["message"])]
            told = self.chat(messages)
            self.assertEqual((told["finish_reason"], told["message"]["content"]), ("stop", answer))
            messages.append(told["message"])
        messages.append(user("Thanks!"))
        self.assertEqual(self.chat(messages)["message"]["content"], "You are welcome.")

    def test_several_calls_at_once(self):
        messages = [user("What is the weather in Rome and Oslo?")]
        both = self.chat(messages)["message"]
        rome, oslo = [("get_weather", {"city": city}) for city in ("Rome", "Oslo")]
        self.assertEqual(calls_of(both), [rome, oslo])
        messages += [both, *results_of(both)]
        self.assertEqual(self.chat(messages)["message"]["content"],
                         "In Rome it is foggy at -7 degrees. In Oslo it is foggy at -7 degrees.")
        self.assertEqual(calls_of(self.chat(messages[:1], parallel_tool_calls=False)["message"]), [rome])

    def test_reasoning_on_and_off(self):
        messages = [user("What is the weather in Oslo?")]
        for fields in ({"chat_template_kwargs": {"enable_thinking": True}}, {"reasoning_effort": "low"}):
            thought = self.chat(messages, **fields)["message"]
            self.assertEqual(thought["reasoning_content"],
                             "The user wants the weather in Oslo. The tool get_weather fits.")
            self.assertEqual(calls_of(thought), [WEATHER])
            told = self.chat([*messages, thought, *results_of(thought)], **fields)["message"]
            self.assertEqual((told["reasoning_content"], told["content"]),
                             ("The tool has answered.", "In Oslo it is foggy at -7 degrees."))
        for fields in ({}, {"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}):
            plain = self.chat(messages, **fields)["message"]
            self.assertNotIn("reasoning_content", plain)
            self.assertEqual(calls_of(plain), [WEATHER])

    def test_tool_choice(self):
        messages = [user("What is the weather in Oslo?")]
        for thinks in (False, True):
            fields = {"chat_template_kwargs": {"enable_thinking": thinks}}
            for name in ("get_weather", "local_time"):
                named = self.chat(messages, tool_choice={"type": "function", "function": {"name": name}}, **fields)
                (call,) = calls_of(named["message"])
                self.assertEqual((call[0], list(call[1].values())), (name, ["Oslo"]))
                self.assertEqual(named["finish_reason"], "tool_calls")
            required = self.chat(messages, tool_choice="required", **fields)
            self.assertEqual(calls_of(required["message"]), [WEATHER])
        # The model would not call any tool here.
        self.assertEqual(calls_of(self.chat([user("Hello")])["message"]), [])
        self.assertEqual(len(calls_of(self.chat([user("Hello")], tool_choice="required")["message"])), 1)
        none = self.chat(messages, tool_choice="none")
        self.assertEqual((none["message"]["content"], none["finish_reason"]), ("I have no tool for that.", "stop"))

    def test_streamed_as_whole(self):
        asked = [user("What is the weather in Rome and Oslo?")]
        calls = self.chat(asked)["message"]
        for messages in (asked, [*asked, calls, *results_of(calls)], [user("Hello. Who are you?")]):
            for effort in ("none", "high"):
                fields = {"reasoning_effort": effort, "logprobs": True}
                whole, parts = self.chat(messages, **fields), self.streamed(messages, **fields)
                self.assertEqual(without_ids(parts["message"]), without_ids(whole["message"]))
                self.assertEqual(parts["finish_reason"], whole["finish_reason"])
                self.assertEqual(parts["logprobs"]["content"], whole["logprobs"]["content"])

    def test_the_example(self):
        example = os.path.join(ROOT, "clients", "python", "examples", "tools.py")
        run = subprocess.run(
            [sys.executable, example, "--server", f"http://127.0.0.1:{self.port}", "What is 1234 * 56?",
             "Write 'buy milk' to notes.txt.", "What is in notes.txt?", "Read plans.txt"],
            capture_output=True, text=True, timeout=60)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        for line in ('  calculate {"expression": "1234 * 56"} -> 69104\n1234 * 56 is 69104.\n',
                     "Done. I wrote notes.txt.\n", "notes.txt says:\nbuy milk\n", "That did not work: no such file\n"):
            self.assertIn(line, run.stdout)


class Responses(Served):
    def results(self, response):
        return [{"type": "function_call_output", "call_id": item["call_id"], "output": RESULTS[item["name"]]}
                for item in response["output"] if item["type"] == "function_call"]

    def calls(self, response):
        return [(item["name"], json.loads(item["arguments"])) for item in response["output"]
                if item["type"] == "function_call"]

    def text(self, response):
        return "".join(part["text"] for item in response["output"] if item["type"] == "message"
                       for part in item["content"])

    def test_three_turns_go_on_from_each_other(self):
        previous = {}
        for said, call, answer in (
                ("What is the weather in Oslo?", WEATHER, "In Oslo it is foggy at -7 degrees."),
                ("And in Rome?", ("get_weather", {"city": "Rome"}), "In Rome it is foggy at -7 degrees.")):
            asked = self.response(said, **previous)
            self.assertEqual(self.calls(asked), [call])
            told = self.response(self.results(asked), previous_response_id=asked["id"])
            self.assertEqual(self.text(told), answer)
            self.assertGreater(told["usage"]["input_tokens_details"]["cached_tokens"], 0)
            previous = {"previous_response_id": told["id"]}
        self.assertEqual(self.text(self.response("Thanks!", **previous)), "You are welcome.")

    def test_reasoning_is_an_item(self):
        for effort, kinds in (("low", ["reasoning", "function_call"]), ("none", ["function_call"])):
            asked = self.response("What is the weather in Oslo?", reasoning={"effort": effort})
            self.assertEqual([item["type"] for item in asked["output"]], kinds)
            told = self.response(self.results(asked), previous_response_id=asked["id"], reasoning={"effort": effort})
            self.assertEqual(self.text(told), "In Oslo it is foggy at -7 degrees.")

    def test_tool_choice(self):
        said = "What is the weather in Oslo?"
        named = self.response(said, tool_choice={"type": "function", "name": "local_time"})
        self.assertEqual(self.calls(named), [("local_time", {"place": "Oslo"})])
        self.assertEqual(self.calls(self.response(said, tool_choice="required")), [WEATHER])
        none = self.response(said, tool_choice="none")
        self.assertEqual((self.calls(none), self.text(none)), ([], "I have no tool for that."))

    def test_streamed_as_whole(self):
        first = self.response("What is the weather in Rome and Oslo?")
        for said, fields in (("What is the weather in Rome and Oslo?", {}),
                             (self.results(first), {"previous_response_id": first["id"]}),
                             ("What is the weather in Oslo?", {"reasoning": {"effort": "high"}})):
            whole = self.response(said, **fields)
            body = {"input": said, "tools": FLAT, "temperature": 0, "stream": True, **fields}
            stream = self.http.send("POST", "/v1/responses", body)
            events = [json.loads(line[6:]) for line in stream if line.startswith(b"data: ")]
            last = events[-1]["response"]
            self.assertEqual((self.calls(last), self.text(last)), (self.calls(whole), self.text(whole)))
            self.assertEqual([item["type"] for item in last["output"]], [item["type"] for item in whole["output"]])
            self.assertEqual(last["usage"]["output_tokens"], whole["usage"]["output_tokens"])
            changes = "".join(event["delta"] for event in events if event["type"].endswith("arguments.delta"))
            self.assertEqual(changes, "".join(item["arguments"] for item in last["output"]
                                              if item["type"] == "function_call"))


class Messages(Served):
    """Anthropic's API."""

    def message(self, messages, **fields):
        tools = [{"name": each["name"], "description": each["description"], "input_schema": each["parameters"]}
                 for each in FUNCTIONS]
        return self.post("/v1/messages", {"messages": messages, "tools": tools, "max_tokens": 200,
                                          "temperature": 0, **fields})

    def test_a_call_and_its_result(self):
        messages = [user("What is the weather in Oslo?")]
        asked = self.message(messages)
        (block,) = asked["content"]
        self.assertEqual((asked["stop_reason"], block["type"], block["name"], block["input"]),
                         ("tool_use", "tool_use", *WEATHER))
        result = {"type": "tool_result", "tool_use_id": block["id"], "content": RESULTS["get_weather"]}
        messages += [{"role": "assistant", "content": asked["content"]}, user([result])]
        told = self.message(messages)
        self.assertEqual((told["stop_reason"], told["content"][0]["text"]),
                         ("end_turn", "In Oslo it is foggy at -7 degrees."))

    def test_tool_choice(self):
        messages = [user("What is the weather in Oslo?")]
        named = self.message(messages, tool_choice={"type": "tool", "name": "local_time"})["content"]
        self.assertEqual([(block["name"], block["input"]) for block in named], [("local_time", {"place": "Oslo"})])
        none = self.message(messages, tool_choice={"type": "none"})["content"]
        self.assertEqual([block["text"] for block in none], ["I have no tool for that."])


class SameBits(Served):
    """A call has the same tokens and the same log-probabilities, to the last bit, however it is computed."""
    FLAGS = ("--prefix-memory", "0")
    # Speculation guesses what a text repeats; the prefix cache wants a long beginning.
    MESSAGES = [{"role": "system", "content": "You are a helpful assistant. " + "Paths are relative. " * 80},
                user("What is the weather in Rome and Oslo?")]

    def answers(self, port, ask):
        self.http = HttpClient(port)
        self.addCleanup(self.http.close)
        choices = [ask(self.MESSAGES, logprobs=True, top_logprobs=3, reasoning_effort=effort) for effort in ("none", "low")]
        for choice in choices:
            self.assertEqual(len(calls_of(choice["message"])), 2)
        return [(without_ids(choice["message"]), choice["logprobs"]["content"]) for choice in choices]

    def test_with_speculation_and_the_prefix_cache(self):
        expected = self.answers(self.port, self.chat)
        self.assertEqual(self.answers(self.port, self.streamed), expected)
        for flags in (("--speculate", "ngram", "--prefix-memory", "0"), (), ("--threads", "1")):
            port = serve(type(self), *flags)
            for ask in (self.chat, self.streamed):
                self.assertEqual(self.answers(port, ask), expected, flags)
            if "--prefix-memory" not in flags:
                usage = self.post("/v1/chat/completions", {"messages": self.MESSAGES, "tools": TOOLS})["usage"]
                self.assertGreater(usage["prompt_tokens_details"]["cached_tokens"], 0)


class SameBitsOverARestart(unittest.TestCase):
    """Turns with calls go on after kill -9 as in a server that was never disturbed."""
    ASKED = ("What is the weather in Oslo?", "And in Rome?")
    CALLS = [WEATHER, ("get_weather", {"city": "Rome"})]

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ovq_restart_test_")
        self.addCleanup(shutil.rmtree, self.folder)
        self.server = self.http = None

    def start(self, *flags):
        if self.server is not None:
            self.http.close()
            self.server.kill()
        self.server = ServerProcess(os.path.join(BIN, "ovq-server"), MODEL, "--http-listen", "127.0.0.1:0", *flags)
        self.addCleanup(self.server.kill)
        self.http = HttpClient(http_port(self.server))
        self.addCleanup(self.http.close)

    def on_disk(self):
        self.start("--session-dir", self.folder)

    def post(self, path, body):
        status, answer, _ = self.http.post(path, body)
        self.assertEqual(status, 200, answer)
        return answer

    def session_turns(self, between):
        """Tokens with log-probabilities of each turn of a session, parts taken apart."""
        path = f"/ovq/v1/sessions/{self.post('/ovq/v1/sessions', {})['sessionId']}"
        messages, told = [], []
        for said, (name, arguments) in zip(self.ASKED, self.CALLS):
            messages.append(user(said))
            for _ in range(2):  # the call, and the answer to its result
                conversation = {"messages": messages, "toolsJson": json.dumps(TOOLS),
                                "known": max(len(messages) - 1, 0)}
                events = self.http.stream(path + "/generate", {
                    "prompt": {"conversation": conversation}, "sampling": {"temperature": 0},
                    "output": {"parts": True, "logprobs": True, "topLogprobs": 2}})
                chunks = [event["chunk"] for event in events if "chunk" in event]
                parts = [part for chunk in chunks for part in chunk.get("parts", [])]
                told.append([(chunk["tokenIds"], chunk["logprobs"], chunk["top"]) for chunk in chunks])
                written = "".join(part.get("arguments", "") for part in parts)
                if messages[-1]["role"] == "user":
                    self.assertEqual(json.loads(written), arguments)
                    call = {"id": "c", "name": name, "argumentsJson": written}
                    messages += [{"role": "assistant", "toolCalls": [call]},
                                 {"role": "tool", "toolCallId": "c", "content": RESULTS[name]}]
                else:
                    text = "".join(part.get("content", "") for part in parts)
                    messages.append({"role": "assistant", "content": text})
                between()
        return told

    def responses(self, between):
        """Items of stored responses that go on from each other, without their ids."""
        told, previous = [], {}
        for said, call in zip(self.ASKED, self.CALLS):
            asked = self.post("/v1/responses", {"input": said, "tools": FLAT, "temperature": 0, **previous})
            between()
            (item,) = self.http.get(f"/v1/responses/{asked['id']}")[1]["output"]
            self.assertEqual((item["name"], json.loads(item["arguments"])), call)
            result = {"type": "function_call_output", "call_id": item["call_id"], "output": RESULTS[item["name"]]}
            answer = self.post("/v1/responses", {
                "input": [result], "previous_response_id": asked["id"], "temperature": 0, "top_logprobs": 2,
                "tools": FLAT, "include": ["message.output_text.logprobs"]})
            between()
            told.append((item["arguments"], answer["output"][0]["content"], answer["usage"]["total_tokens"]))
            previous = {"previous_response_id": answer["id"]}
        return told

    def test_sessions_and_stored_responses(self):
        self.start()
        expected = [turns(lambda: None) for turns in (self.session_turns, self.responses)]
        self.on_disk()
        self.assertEqual([turns(self.on_disk) for turns in (self.session_turns, self.responses)], expected)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BIN = os.path.join(os.path.abspath(options.build), "bin")
    unittest.main(argv=[sys.argv[0], *rest])
