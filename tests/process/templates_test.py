"""Three turns through public chat templates: over gRPC's Chat, with ovq-chat and as the console sends them, sessions
and answers are the same, and as long as a chat over HTTP that brings its whole history.

usage: templates_test.py --build BUILD_FOLDER [unittest arguments]

OVQ_CHAT_TEMPLATE_FIXTURES names a folder of templates, as for the tests of templates.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

FIXTURES = os.environ.get("OVQ_CHAT_TEMPLATE_FIXTURES")
if not FIXTURES:
    print("SKIPPED: OVQ_CHAT_TEMPLATE_FIXTURES is not set")
    sys.exit(0)

import security_util  # noqa: F401  ends the program with a message if a requirement is missing
import grpc
from http_client import HttpClient, http_port
from server_process import ServerProcess, load_stubs
from tiny_model import write_tiny_model

TEMPLATES = sorted(name for name in os.listdir(FIXTURES) if os.path.isdir(os.path.join(FIXTURES, name)))
SAID = ("Hello!", "And what is more?", "Thank you.")
TOKENS = 5
# Bytes that sessions keep and whole histories lack: the prompt begins two earlier answers with reasoning, or the lack
# of it, which the template does not write again.
# One template writes something else in its place.
KEPT = {"command-r7b": 2 * (len("<|START_THINKING|><|END_THINKING|>") - len("<|START_RESPONSE|>")),
        "deepseek-r1-distill": 2 * len("<think>\n</think>"), "qwen3.5": 2 * len("<think>\n")}
BIN = folder = pb = rpc = None


class Template(unittest.TestCase):
    def serve(self, name):
        template = os.path.join(FIXTURES, name, "chat_template.jinja")
        server = ServerProcess(os.path.join(BIN, "ovq-server"), os.path.join(folder, "tiny"), "--threads", "1",
                               "--state-memory", "64M", "--chat-template", template, "--http-listen", "127.0.0.1:0")
        self.addCleanup(server.kill)
        self.http = HttpClient(http_port(server))
        self.addCleanup(self.http.close)
        return server.address

    def post(self, path, body):
        status, answer, _ = self.http.post(path, body)
        self.assertEqual(status, 200, answer)
        return answer

    def told(self, answers, session_id):
        session = self.http.get(f"/ovq/v1/sessions/{session_id}")[1]
        return answers, int(session["position"]), session.get("lastToken")

    def over_grpc(self, address):
        """The answers and the session's end."""
        answers, messages, answered = [], [], threading.Semaphore(0)
        with grpc.insecure_channel(address) as channel:
            session_id = rpc.SessionServiceStub(channel).CreateSession(pb.CreateSessionRequest()).session_id

            def turns():
                yield pb.ChatRequest(open=pb.ChatOpen(session_id=session_id))
                for said in SAID:
                    messages.append(pb.ChatMessage(role="user", content=said))
                    prompt = pb.Prompt(conversation=pb.Conversation(messages=messages, known=len(messages) - 1))
                    yield pb.ChatRequest(turn=pb.ChatTurn(
                        prompt=prompt, sampling=pb.SamplingParams(temperature=0),
                        stop=pb.StopConditions(max_tokens=TOKENS, ignore_eos=True)))
                    answered.acquire()
            text = ""
            for event in rpc.InferenceServiceStub(channel).Chat(turns()):
                text += event.chunk.text
                if event.HasField("finished"):
                    answers.append(text)
                    messages.append(pb.ChatMessage(role="assistant", content=text))
                    text = ""
                    answered.release()
        return self.told(answers, session_id)

    def as_the_console(self):
        """Likewise, as server/http/console/chat.js sends turns."""
        answers, messages = [], []
        session_id = self.post("/ovq/v1/sessions", {})["sessionId"]
        for said in SAID:
            messages.append({"role": "user", "content": said})
            events = self.http.stream(f"/ovq/v1/sessions/{session_id}/generate", {
                "prompt": {"conversation": {"messages": messages, "known": len(messages) - 1}},
                "sampling": {"temperature": 0}, "stop": {"maxTokens": TOKENS, "ignoreEos": True}})
            answers.append("".join(event["chunk"].get("text", "") for event in events if "chunk" in event))
            messages.append({"role": "assistant", "content": answers[-1]})
        return self.told(answers, session_id)

    def with_ovq_chat(self, address):
        """Its output, and the session's end."""
        run = subprocess.run([os.path.join(BIN, "ovq-chat"), "--server", address, "--messages", "--interactive",
                              "--keep-session", "--temperature=0", f"--max-tokens={TOKENS}", "--ignore-eos"],
                             input="\n".join(SAID).encode(), capture_output=True, timeout=60)
        self.assertEqual(run.returncode, 0, run.stderr)
        return self.told(run.stdout.decode(), re.match(r"session (\S+)", run.stderr.decode()).group(1))

    def length_of_history(self):
        """Tokens of the whole conversation, in which every answer has so many bytes, by HTTP's chats."""
        messages = []
        for said in SAID:
            messages += [{"role": "user", "content": said}, {"role": "assistant", "content": "a" * TOKENS}]
        return len(self.post("/tokenize", {"messages": messages[:-1]})["tokens"]) + TOKENS

    def check(self, name):
        address = self.serve(name)
        answers, length, last = self.over_grpc(address)
        self.assertEqual(length, self.length_of_history() + KEPT.get(name, 0))
        self.assertEqual(self.as_the_console(), (answers, length, last))
        shown = "".join(text.removesuffix("\n") + "\n" for text in answers)
        self.assertEqual(self.with_ovq_chat(address), (shown, length, last))


for each in TEMPLATES:
    setattr(Template, "test_" + each, lambda self, name=each: self.check(name))

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BIN = os.path.join(os.path.abspath(options.build), "bin")
    folder = tempfile.mkdtemp(prefix="ovq_templates_test_")
    try:
        write_tiny_model(os.path.join(folder, "tiny"))
        with open(os.path.join(folder, "tiny", "tokenizer_config.json"), "w") as file:
            json.dump({"bos_token": "<s>", "eos_token": "</s>"}, file)
        pb, rpc = load_stubs(folder)
        program = unittest.main(argv=[sys.argv[0], *rest], exit=False)
    finally:
        shutil.rmtree(folder)
    sys.exit(not program.result.wasSuccessful())
