"""Conversations of the shape that coding agents have: their sizes, calls and results, and the measure by a server."""

import http.server
import json
import os
import random
import threading
import unittest

from support import TRAINING

from agent_conversations import AgentConversation
from chat import commands
from chat.bpe import load_tokenizer
from chat_measure import Served
from conversations import Conversation, conversation_text, is_held_out, make_sample
from sources import ConversationSource

TOKENIZER = load_tokenizer(os.path.join(os.path.dirname(TRAINING), "models", "scripted-chat", "tokenizer.json"))
KINDS = {"string": str, "integer": int, "array": list, "boolean": bool}


class AgentConversationTest(unittest.TestCase):
    def test_the_prompt_fills_most_of_the_length(self):
        for length in (1024, 8192, 16384):
            samples = [make_sample(seed, length, TOKENIZER, False, AgentConversation) for seed in range(4)]
            for sample in samples:
                self.assertLessEqual(len(sample.ids), length)
                self.assertGreater(len(sample.ids), 0.6 * length)
            prompts = [sample.answers[0][0] / length for sample in samples]
            self.assertGreater(sum(prompts) / len(prompts), 0.6 if length > 8192 else 0.35)

    def test_seeds_decide_all(self):
        texts = [conversation_text(seed, 900, False, AgentConversation) for seed in range(50)]
        self.assertEqual(texts, [conversation_text(seed, 900, False, AgentConversation) for seed in range(50)])
        self.assertEqual(len(set(texts)), 50)

    def test_calls_give_what_their_schemas_require(self):
        n_calls, n_always = 0, 0
        for seed in range(150):
            conversation = AgentConversation(random.Random(seed), 3000)
            tools = {tool.name: tool.schema for tool in conversation.tools}
            self.assertEqual(len(tools), len(conversation.tools))
            self.assertTrue(all(name == tool["name"] for name, tool in tools.items()))
            for _ in range(4):
                for message in conversation.next_turn().messages:
                    for call in message.get("tool_calls", []):
                        n_calls += 1
                        wanted = tools[call["name"]]["parameters"]
                        self.assertEqual(list(call["arguments"]), wanted.get("required", []))
                        for name, value in call["arguments"].items():
                            self.assertIsInstance(value, KINDS[wanted["properties"][name]["type"]])
                            n_always += value is False
        self.assertGreater(n_calls, 200)
        self.assertGreater(n_always, 10)

    def test_what_is_said_is_in_the_prompt_and_the_hash_is_of_what_is_asked(self):
        for seed in range(20):
            conversation = AgentConversation(random.Random(seed), 2000)
            turn = conversation.next_turn(True, tries=5000)
            self.assertTrue(is_held_out(turn.said))
            self.assertIn(turn.said, turn.messages[0]["content"])

    def test_a_command_that_failed_is_told_as_such(self):
        for seed in range(200):
            text = commands.wrapped(random.Random(seed), "make", "error: no rule", True)
            self.assertIn("error: no rule", text)
            self.assertNotIn("Exit code: 0", text)
            self.assertNotIn('"exit_code": 0', text)


class SourceTest(unittest.TestCase):
    def test_the_share_of_agents(self):
        made = {share: ConversationSource(TOKENIZER, 600, 5, 0.25, share) for share in (0, 0.5, 1)}
        self.assertEqual(len({source.fingerprint for source in made.values()}), 3)
        texts = [TOKENIZER.decode(made[0.5]._make(seed, 600).ids) for seed in range(60)]
        plain = [TOKENIZER.decode(make_sample(seed, 600, TOKENIZER, False, Conversation).ids) for seed in range(60)]
        agents = [TOKENIZER.decode(make_sample(seed, 600, TOKENIZER, False, AgentConversation).ids) for seed in range(60)]
        chosen = [text == agents[i] for i, text in enumerate(texts)]
        self.assertTrue(all(text == (agents if chosen[i] else plain)[i] for i, text in enumerate(texts)))
        self.assertTrue(15 < sum(chosen) < 45)


class Answering(http.server.BaseHTTPRequestHandler):
    """A server whose model knows one sample, and ends its answers as `finish` says."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        begin, end, _ = next(answer for answer in self.server.sample.answers if answer[0] == len(asked["prompt"]))
        assert asked["prompt"] == self.server.sample.ids[:begin] and asked["temperature"] == 0
        text = TOKENIZER.decode(self.server.sample.ids[begin:end - 1])
        choice = {"text": text + self.server.more, "finish_reason": self.server.finish}
        body = json.dumps({"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class ServedTest(unittest.TestCase):
    def test_an_answer_is_right_if_text_and_end_are(self):
        server = http.server.HTTPServer(("127.0.0.1", 0), Answering)
        self.addCleanup(server.server_close)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.shutdown)
        server.sample = make_sample(7, 900, TOKENIZER, True, AgentConversation)
        served = Served(f"http://127.0.0.1:{server.server_port}", TOKENIZER)
        for server.more, server.finish, right in (("", "stop", True), ("x", "stop", False), ("", "length", False)):
            self.assertEqual(served.answers_right(server.sample), [right] * len(server.sample.answers))


if __name__ == "__main__":
    unittest.main()
