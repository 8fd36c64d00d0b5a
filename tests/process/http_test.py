"""Answers of a real server's HTTP front: OpenAI's API, benchmarks' requests, sessions as JSON.

usage: http_test.py --build BUILD_FOLDER [unittest arguments]
"""

import json
import os
import re
import unittest

import http_case
from http_case import HttpCase, main, serve
from http_client import HttpClient, http_port
from server_process import run_to_end, wait_for

# ASCII only, so that an answer can be sent back unchanged
ASCII = {str(i): -100 for i in range(128, 258)}


def text_of(chunks):
    return "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])


class OpenAi(HttpCase):
    def test_models(self):
        status, models, _ = self.http.get("/v1/models")
        self.assertEqual((status, [m["id"] for m in models["data"]]), (200, ["tiny"]))
        self.assertEqual(self.http.get("/v1/models/tiny")[1], models["data"][0])
        error = self.error(self.http.get("/v1/models/gpt-9"), 404, "tiny")
        self.assertEqual(error["code"], "model_not_found")

    def test_served_names(self):
        with serve("--served-model-name", "org/tiny,tiny-too") as server:
            http = HttpClient(http_port(server))
            self.addCleanup(http.close)
            models = http.get("/v1/models")[1]["data"]
            self.assertEqual([model["id"] for model in models], ["org/tiny", "tiny-too"])
            for path in ("org/tiny", "org%2Ftiny"):
                self.assertEqual(http.get(f"/v1/models/{path}")[1], models[0])
            for name in ("org/tiny", "tiny-too"):
                answer = http.post("/v1/completions", {"model": name, "prompt": "x"})
                self.assertEqual(answer[1]["model"], "org/tiny", answer)
            self.error(http.post("/v1/completions", {"model": "tiny", "prompt": "x"}), 404,
                       "'tiny'", "model")
            self.assertEqual(http.get("/ovq/v1/info")[1]["name"], "org/tiny")

    def test_chat_template_of_the_flag(self):
        path = http_case.path_of("other.jinja")
        with open(path, "w") as file:
            file.write("{% for m in messages %}[{{ m.content }}]{% endfor %}")
        with serve("--chat-template", path) as server:
            http = HttpClient(http_port(server))
            self.addCleanup(http.close)
            told = http.post("/tokenize", {"messages": [{"role": "user", "content": "x"}]})[1]
            self.assertEqual(bytes(told["tokens"]), b"[x]")
        with open(path, "w") as file:
            file.write("\n{% if %}")
        code, _, error = run_to_end(http_case.binary, "--model", http_case.path_of("tiny"),
                                    "--chat-template", path)
        self.assertEqual(code, 1)
        self.assertIn("other.jinja, line 2: syntax", error)

    def test_completion_whole_and_streamed(self):
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 12, "temperature": 0}
        status, whole, headers = self.http.post("/v1/completions", body)
        self.assertEqual(status, 200, whole)
        self.assertRegex(headers["x-request-id"], "^[0-9a-f]{32}$")
        choice = whole["choices"][0]
        self.assertEqual((choice["finish_reason"], whole["object"]), ("length", "text_completion"))
        self.assertEqual(whole["usage"]["completion_tokens"], 12)
        self.assertEqual(whole["usage"]["total_tokens"], whole["usage"]["prompt_tokens"] + 12)
        chunks = self.http.stream("/v1/completions", {
            **body, "stream": True, "stream_options": {"include_usage": True}})
        self.assertEqual(text_of(chunks), choice["text"])
        self.assertEqual(chunks[-1]["choices"], [])
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], 12)
        self.assertEqual(chunks[-2]["choices"][0]["finish_reason"], "length")
        counted = self.http.stream("/v1/completions", {
            **body, "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
        counts = [chunk["usage"]["completion_tokens"] for chunk in counted]
        self.assertEqual((counts, counts[-1]), (sorted(counts), 12))

    def test_prompts(self):
        ids = list(b"hello")
        answers = [self.http.post("/v1/completions", {"prompt": prompt, "temperature": 0})
                   for prompt in (ids, [ids], "hello", ["hello"])]
        self.assertEqual([status for status, _, _ in answers], [200] * 4, answers)
        texts = [answer["choices"][0]["text"] for _, answer, _ in answers]
        self.assertEqual((texts[0], texts[2]), (texts[1], texts[3]))
        self.error(self.http.post("/v1/completions", {"prompt": ["a", ["b"]]}), 400, "prompt[1]: ",
                   "prompt[1]")
        self.error(self.http.post("/v1/completions", {"prompt": ["a"] * 257}), 400, "257", "prompt")
        self.error(self.http.post("/v1/completions", {"prompt": [7, 300000]}), 400,
                   "prompt[1]", "prompt[1]")
        self.error(self.http.post("/v1/completions", {}), 400, "prompt", "prompt")

    def test_several_prompts(self):
        body = {"prompt": ["ab", list(b"cde"), "f"], "n": 2, "max_tokens": 6, "seed": 3, "logprobs": 1}
        whole = self.http.post("/v1/completions", body)[1]
        self.assertEqual([choice["index"] for choice in whole["choices"]], list(range(6)))
        usage = whole["usage"]
        self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]),
                         (6, 36, 42))
        for p, prompt in enumerate(body["prompt"]):
            alone = self.http.post("/v1/completions", {**body, "prompt": prompt})[1]
            for i in range(2):
                self.assertEqual(whole["choices"][2 * p + i], {**alone["choices"][i], "index": 2 * p + i})
        chunks = self.http.stream("/v1/completions", {
            **body, "stream": True, "stream_options": {"include_usage": True}})
        texts, ends = [""] * 6, []
        for chunk in chunks:
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["text"]
                ends += [choice["index"]] * (choice["finish_reason"] is not None)
        self.assertEqual(texts, [choice["text"] for choice in whole["choices"]])
        self.assertEqual((sorted(ends), chunks[-1]["usage"]), (list(range(6)), usage))

    def test_an_error_in_one_prompt_ends_all(self):
        for stream in (False, True):
            for echo in (False, True):
                body = {"prompt": ["ok", [7, 300000], "ok"], "stream": stream, "echo": echo,
                        "logprobs": 1, "max_tokens": 100000, "ignore_eos": True}
                self.error(self.http.post("/v1/completions", body), 400, "prompt[1][1]: ", "prompt[1][1]")
        while self.http.get("/ovq/v1/status")[1].get("requestsRunning", 0):
            pass

    def score(self, tokens, ctxlens, max_tokens):
        """Scores as lm-eval's LocalCompletionsAPI asks for them and reads them
        (lm_eval/models/openai_completions.py: _create_payload, parse_logprobs)."""
        _, out, _ = self.http.post("/v1/completions", {
            "model": "tiny", "prompt": tokens, "temperature": 0, "max_tokens": max_tokens,
            "logprobs": 1, "seed": 1234, "echo": True})
        scores = []
        for choice, ctxlen in zip(sorted(out["choices"], key=lambda choice: choice["index"]), ctxlens):
            end = -1 if max_tokens else None
            logprobs = choice["logprobs"]["token_logprobs"][ctxlen:end]
            top = choice["logprobs"]["top_logprobs"][ctxlen:end]
            scores.append((sum(logprobs), all(a == max(b.values()) for a, b in zip(logprobs, top)),
                           len(logprobs), choice))
        return scores, out["usage"]

    def prefilled(self):
        return float(re.search(r'ovq_step_tokens_sum\{.*phase="prefill"\} (\S+)', self.server.metrics()).group(1))

    def test_scores_as_lm_eval_asks_for_them(self):
        greedy = self.http.post("/v1/completions", {
            "prompt": list(b"hello"), "max_tokens": 5, "temperature": 0, "logprobs": 0,
            "return_token_ids": False})[1]["choices"][0]
        ids = [int(name[-2:], 16) if name.startswith("bytes:") else ord(name)
               for name in greedy["logprobs"]["tokens"]]
        tokens = [list(b"hello") + ids, list(b"hello world"), list(b"a")]
        for max_tokens in (1, 0):
            before = self.prefilled()
            scores, usage = self.score(tokens, [5, 6, 1], max_tokens)
            # Each token is read once; the last one of a prompt only if another one is drawn.
            expected = 22 if max_tokens else 19
            wait_for(lambda: self.prefilled() - before >= expected)  # a step counts once it has answered
            self.assertEqual(self.prefilled() - before, expected)
            total, is_greedy, n, choice = scores[0]
            self.assertEqual((is_greedy, n), (True, 5))
            self.assertAlmostEqual(total, sum(greedy["logprobs"]["token_logprobs"]), places=3)
            self.assertEqual(choice["finish_reason"], "length")
            lists = choice["logprobs"]
            self.assertEqual((lists["token_logprobs"][0], lists["top_logprobs"][0]), (None, None))
            self.assertEqual({len(lists[name]) for name in lists}, {10 + max_tokens})
            self.assertEqual(lists["text_offset"][:6], [0, 1, 2, 3, 4, 5])
            self.assertTrue(choice["text"].startswith("hello"))
            self.assertEqual((scores[1][1], scores[1][2], scores[2][2]), (False, 5, 0))
            self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"]), (22, 3 * max_tokens))

    def test_echo(self):
        body = {"prompt": ["ab", list(b"h\xc3\xa9")], "max_tokens": 3, "temperature": 0}
        plain = self.http.post("/v1/completions", body)[1]
        for logprobs in (None, 0, 2):
            echo = self.http.post("/v1/completions", {**body, "echo": True, "n": 2, "logprobs": logprobs})[1]
            self.assertEqual([choice["text"] for choice in echo["choices"]],
                             [prefix + plain["choices"][p]["text"]
                              for p, prefix in ((0, "ab"), (0, "ab"), (1, "hé"), (1, "hé"))])
            self.assertEqual(echo["usage"]["completion_tokens"], 12)
            chunks = self.http.stream("/v1/completions", {**body, "echo": True, "n": 2,
                                                          "logprobs": logprobs, "stream": True})
            texts, values = [""] * 4, [[] for _ in range(4)]
            for chunk in chunks:
                for choice in chunk["choices"]:
                    texts[choice["index"]] += choice["text"]
                    values[choice["index"]] += (choice["logprobs"] or {}).get("token_logprobs", [])
            self.assertEqual(texts, [choice["text"] for choice in echo["choices"]])
            for choice in echo["choices"]:
                self.assertEqual((choice["logprobs"] or {}).get("token_logprobs", []),
                                 values[choice["index"]])
        self.assertEqual(echo["choices"][2]["logprobs"]["text_offset"][:4], [0, 1, 1, 2])
        for field, value in (("temperature", -1), ("n", 0), ("logprobs", 2000)):
            self.error(self.http.post("/v1/completions", {
                "prompt": "x", "echo": True, "logprobs": 1, "max_tokens": 0, field: value}), 400, field, field)
        self.error(self.http.post("/v1/completions", {"prompt": "", "echo": True, "logprobs": 1}), 400,
                   "prompt", "prompt")
        self.error(self.http.post("/v1/completions", {
            "prompt": ["x" * 20000, "y"], "echo": True, "logprobs": 1000, "max_tokens": 0}), 400, "echo")

    def test_choices_seed_stop_and_bias(self):
        body = {"prompt": "abc", "max_tokens": 6, "n": 3, "seed": 7}
        answers = [self.http.post("/v1/completions", body)[1] for _ in range(2)]
        texts = [[choice["text"] for choice in answer["choices"]] for answer in answers]
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(len(set(texts[0])), 3)
        _, biased, _ = self.http.post("/v1/completions", {
            "prompt": "abc", "logit_bias": {"120": 100}, "max_tokens": 40, "stop": ["xxx"],
            "temperature": 0})
        self.assertEqual((biased["choices"][0]["text"], biased["choices"][0]["finish_reason"],
                          biased["choices"][0]["stop_reason"]), ("", "stop", "xxx"))
        chunks = self.http.stream("/v1/completions", {**body, "stream": True})
        streamed = ["", "", ""]
        for chunk in chunks:
            for choice in chunk["choices"]:
                streamed[choice["index"]] += choice["text"]
        self.assertEqual(streamed, texts[0])

    def test_logprobs(self):
        _, answer, _ = self.http.post("/v1/completions", {
            "prompt": "abc", "max_tokens": 3, "logprobs": 2, "temperature": 0,
            "logit_bias": {str(i): -100 for i in range(128, 258)}})
        logprobs = answer["choices"][0]["logprobs"]
        self.assertEqual([len(logprobs[name]) for name in ("tokens", "token_logprobs",
                                                           "top_logprobs", "text_offset")], [3] * 4)
        self.assertEqual("".join(logprobs["tokens"]), answer["choices"][0]["text"])
        # Tokens that are parts of characters: each has a name and its own byte.
        body = {"prompt": list(b"abc"), "max_tokens": 4, "logprobs": 258, "temperature": 0,
                "logit_bias": {"226": 100}, "ignore_eos": True}
        logprobs = self.http.post("/v1/completions", body)[1]["choices"][0]["logprobs"]
        self.assertEqual(logprobs["tokens"], ["bytes:\\xe2"] * 4)
        self.assertEqual([len(top) for top in logprobs["top_logprobs"]], [258] * 4)
        self.assertEqual(logprobs["text_offset"], [0, 1, 2, 3])
        _, chat, _ = self.http.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "logprobs": True,
            "top_logprobs": 258, "temperature": 0})
        for token in chat["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
            if token["bytes"] and token["bytes"][0] < 128:
                self.assertEqual(token["token"].encode(), bytes(token["bytes"]))
            elif token["bytes"]:
                self.assertEqual(token["token"], "bytes:\\x%02x" % token["bytes"][0])
            else:
                self.assertRegex(token["token"], "^token_id:25[67]$")
        _, chat, _ = self.http.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "logprobs": True,
            "top_logprobs": 2, "temperature": 0})
        content = chat["choices"][0]["logprobs"]["content"]
        self.assertEqual([len(token["top_logprobs"]) for token in content], [2, 2, 2])
        self.assertLessEqual({"token", "logprob", "bytes"}, content[0].keys())

    def test_chat_whole_streamed_and_from_the_cache(self):
        messages = [{"role": "system", "content": "be brief " * 60},
                    {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
        body = {"model": "tiny", "messages": messages, "max_completion_tokens": 8, "temperature": 0}
        status, whole, _ = self.http.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, whole)
        message = whole["choices"][0]["message"]
        self.assertEqual(message["role"], "assistant")
        chunks = self.http.stream("/v1/chat/completions", {**body, "stream": True})
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        self.assertEqual(deltas[0], {"role": "assistant", "content": ""})
        self.assertEqual("".join(delta.get("content", "") for delta in deltas), message["content"])
        self.assertEqual({chunk["object"] for chunk in chunks}, {"chat.completion.chunk"})
        # A conversation that is sent again with later messages.
        again = {**body, "messages": messages + [message, {"role": "user", "content": "and?"}]}
        usage = self.http.post("/v1/chat/completions", again)[1]["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.assertGreaterEqual(cached, whole["usage"]["prompt_tokens"] - len("<assistant>"))
        self.assertLess(cached, usage["prompt_tokens"])

    def test_tokenize(self):
        self.assertEqual(self.http.post("/tokenize", {"prompt": "hi"})[1]["tokens"], [104, 105])
        told = self.http.post("/tokenize", {"prompt": 'h"é', "return_token_strs": True})[1]
        self.assertEqual((told["count"], told["token_strs"][:2]), (4, ["h", '"']))
        self.assertEqual(told["token_strs"][2:], ["bytes:\\xc3", "bytes:\\xa9"])
        self.assertEqual(self.http.post("/detokenize", {"tokens": [104, 105]})[1], {"prompt": "hi"})
        chat = self.http.post("/tokenize", {"messages": [{"role": "user", "content": "x"}]})[1]
        self.assertEqual(bytes(chat["tokens"]).decode(), "<user>x\n<assistant>")
        self.assertEqual(chat["count"], len(chat["tokens"]))
        self.error(self.http.post("/tokenize", {}), 400, "messages")

    def test_refusals_name_the_field(self):
        chat = {"messages": [{"role": "user", "content": "x"}]}
        # This model's template writes no calls.
        tool = {"type": "function", "function": {"name": "f"}}
        self.error(self.http.post("/v1/chat/completions", {**chat, "tools": [tool]}), 400, "tools",
                   "tools")
        for field, value in (("audio", {"voice": "x"}), ("store", True),
                             ("guided_decoding_backend", "xgrammar"), ("bad_words", ["x"]),
                             ("functions", [{}]), ("verbosity", "low")):
            error = self.error(self.http.post("/v1/chat/completions", {**chat, field: value}), 400,
                               field, field)
            self.assertEqual(error["code"], "unsupported_parameter")
        for field, value in (("temperature", 1000), ("top_p", 0), ("n", 100), ("n", 0),
                             ("min_p", 2), ("max_tokens", -1), ("logit_bias", {"x": 1}),
                             ("stop", [1]), ("seed", "s"), ("top_logprobs", 5),
                             ("chat_template_kwargs", {"messages": 1})):
            self.error(self.http.post("/v1/chat/completions", {**chat, field: value}), 400, field)
        self.error(self.http.post("/v1/chat/completions", {**chat, "suprise": 1}), 400, "suprise")
        self.error(self.http.post("/v1/chat/completions", {"messages": []}), 400, "messages",
                   "messages")
        self.error(self.http.post("/v1/chat/completions", {"messages": [{"content": "x"}]}), 400,
                   "messages[0].role")
        self.error(self.http.post("/v1/chat/completions", {**chat, "stop": ["x"] * 17}), 400, "stop: expected", "stop")
        self.error(self.http.post("/detokenize", {"tokens": [10**6]}), 400, "tokens[0]: expected", "tokens[0]")
        self.error(self.http.post("/tokenize", {"messages": [{"content": "x"}]}), 400, "messages[0].role: expected",
                   "messages[0].role")
        self.error(self.http.post("/tokenize", {**chat, "chat_template_kwargs": {"messages": 1}}), 400,
                   "chat_template_kwargs: expected", "chat_template_kwargs")
        image = [{"role": "user", "content": [{"type": "image_url"}]}]
        self.error(self.http.post("/v1/chat/completions", {"messages": image}), 400,
                   "messages[0].content")
        self.error(self.http.post("/v1/completions", {"prompt": "x", "model": "gpt"}), 404, "tiny",
                   "model")
        # Fields that are ignored here.
        for field in ("user", "service_tier", "metadata"):
            status, answer, _ = self.http.post("/v1/chat/completions",
                                               {**chat, field: "x", "max_tokens": 1})
            self.assertEqual(status, 200, answer)


class Benchmarks(HttpCase):
    """Requests of benchmark clients, and how they read the answers, according to their sources."""

    def test_vllm_bench_serve(self):
        # vllm-project/vllm, vllm/benchmarks/serve.py at 009e6d4a1cd6: the model, if none is named,
        # and prompts aligned to this server's tokens (get_first_model_from_server,
        # _align_prompts_to_server_tokenizer), figures that only vLLM has
        # (fetch_spec_decode_metrics).
        model = self.http.get("/v1/models")[1]["data"][0]
        self.assertEqual((model["id"], model["root"]), ("tiny", "tiny"))
        tokens = self.http.post("/tokenize", {"model": "tiny", "prompt": "hello",
                                              "add_special_tokens": False})[1]["tokens"]
        self.assertEqual(tokens, list(b"hello"))
        prompt = self.http.post("/detokenize", {"model": "tiny", "tokens": tokens[:4]})[1]["prompt"]
        self.assertEqual(prompt, "hell")
        response = self.http.send("GET", "/metrics")
        self.assertEqual((response.status, response.read() != b""), (404, True))
        # vllm/benchmarks/lib/endpoint_request_func.py at 02cfb534df56: async_request_openai_completions.
        sampling = {"top_p": 0.9, "top_k": 50, "min_p": 0.01, "temperature": 0.0, "frequency_penalty": 0.0,
                    # from --extra-body and its flags
                    "presence_penalty": 0.0, "repetition_penalty": 1.0}
        payload = {"model": "tiny", "prompt": prompt, "repetition_penalty": 1.0, "max_tokens": 8,
                   "logprobs": None, "stream": True, "stream_options": {"include_usage": True},
                   "ignore_eos": True}
        for body in (payload, {**payload, **sampling}, {**payload, "logprobs": 2},
                     {**payload, "prompt": tokens}):  # timed_trace has ids
            chunks = self.http.stream("/v1/completions", body,
                                      headers={"x-request-id": "benchmark-serving0"})
            told = self.as_vllm_reads(chunks, lambda choice: choice.get("text"))
            self.assertEqual((told["completion_tokens"], told["prompt_tokens"]),
                             (8, len(body["prompt"])))
        # async_request_openai_chat_completions.
        payload = {"model": "tiny", "max_completion_tokens": 8, "stream": True, "ignore_eos": True,
                   "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
                   "stream_options": {"include_usage": True}, "temperature": 0.0}
        chunks = self.http.stream("/v1/chat/completions", payload)
        told = self.as_vllm_reads(chunks, lambda choice: choice["delta"].get("content"))
        self.assertEqual(told["completion_tokens"], 8)

    def as_vllm_reads(self, chunks, text):
        """A chunk has either choices or the usage."""
        texts = [text(chunk["choices"][0]) for chunk in chunks if chunk.get("choices")]
        self.assertTrue("".join(part or "" for part in texts))
        return [chunk["usage"] for chunk in chunks if not chunk.get("choices")][-1]

    def test_guidellm(self):
        # vllm-project/guidellm, src/guidellm/backends/openai/http.py at 03358ed980f4: validate,
        # available_models; request_handlers.py at 003104ddc722: the bodies (fields that are None
        # are left out before they are sent) and the parts of the lines that are read.
        self.assertEqual(self.http.send("GET", "/health").read(), b"")
        model = self.http.get("/v1/models")[1]["data"][0]["id"]
        common = {"model": model, "stream": True, "ignore_eos": True,
                  "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        for path, body, text in (
                ("/v1/completions", {**common, "max_tokens": 8, "prompt": "prefix hello"},
                 lambda choice: choice.get("text")),
                ("/v1/chat/completions", {**common, "max_completion_tokens": 8, "messages": [
                    {"role": "system", "content": "prefix"},
                    {"role": "user", "content": [{"type": "text", "text": "hello"}]},
                    {"role": "assistant", "content": "x"},
                    {"role": "user", "content": [{"type": "text", "text": "hello"}]}]},
                 lambda choice: choice.get("delta", {}).get("content"))):
            chunks = self.http.stream(path, body)
            self.assertTrue("".join(text(c["choices"][0]) or "" for c in chunks if c["choices"]))
            self.assertTrue(chunks[0]["id"])
            usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
            self.assertEqual(usages[-1]["completion_tokens"], 8)
            self.assertGreater(usages[-1]["prompt_tokens"], 8)
        # An earlier version (src/guidellm/backend/openai.py at 02554b034615) sends both limits.
        older = {"model": model, "prompt": "hello", "max_tokens": 8, "max_completion_tokens": 8,
                 "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        self.assertEqual(self.http.stream("/v1/completions", older)[-1]["usage"]["completion_tokens"], 8)
        # Responses whose history the server keeps.
        body = {"model": model, "stream": True, "max_output_tokens": 8, "ignore_eos": True,
                "instructions": "prefix",
                "input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]}
        first = self.http.response(body)
        second = self.http.response({**body, "previous_response_id": first["id"]})
        for response in (first, second):
            self.assertEqual(response["usage"]["output_tokens"], 8)


class Responses(HttpCase):
    def post_response(self, **fields):
        status, answer, _ = self.http.post("/v1/responses", {
            "model": "tiny", "max_output_tokens": 6, "temperature": 0, "logit_bias": ASCII, **fields})
        self.assertEqual(status, 200, answer)
        return answer

    def text(self, response):
        return response["output"][0]["content"][0]["text"]

    def test_continuing_costs_no_prompt(self):
        first = self.post_response(input="long " * 500, instructions="be brief")
        self.assertEqual((first["status"], first["incomplete_details"]["reason"]),
                         ("incomplete", "max_output_tokens"))
        self.assertRegex(first["id"], r"^resp_[0-9a-f]{16}\.[0-9a-f]{32}$")
        second = self.post_response(input="more", previous_response_id=first["id"],
                                    instructions="be brief")
        usage = second["usage"]
        new = usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"]
        self.assertLess(new, 40)
        self.assertGreater(usage["input_tokens"], 2500)
        # Answers equal, token by token, those to a request with the whole history.
        chat = self.http.post("/v1/chat/completions", {
            "max_tokens": 6, "temperature": 0, "logit_bias": ASCII, "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "long " * 500},
                {"role": "assistant", "content": self.text(first)},
                {"role": "user", "content": "more"}]})[1]
        self.assertEqual(self.text(second), chat["choices"][0]["message"]["content"])
        self.assertEqual(usage["input_tokens"], chat["usage"]["prompt_tokens"])
        # A branch leaves the first conversation unchanged. Keys stay the same, for balancers.
        branch = self.post_response(input="more", previous_response_id=first["id"])
        self.assertEqual(self.text(branch), self.text(second))
        self.assertEqual(branch["id"].split(".")[0], first["id"].split(".")[0])
        self.assertEqual(self.http.get(f"/v1/responses/{first['id']}")[1], first)
        self.assertEqual(self.http.call("DELETE", f"/v1/responses/{first['id']}")[1],
                         {"id": first["id"], "object": "response", "deleted": True})
        self.error(self.http.get(f"/v1/responses/{first['id']}"), 404)
        error = self.error(self.http.post("/v1/responses", {
            "input": "x", "previous_response_id": first["id"]}), 404, "previous_response_id")
        self.assertEqual(error["code"], "previous_response_not_found")
        self.post_response(input="again", previous_response_id=second["id"])

    def test_events(self):
        response = self.http.send("POST", "/v1/responses", {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
            "max_output_tokens": 4, "stream": True})
        names, events = [], []
        for line in response:
            if line.startswith(b"event: "):
                names.append(line[7:].strip().decode())
            elif line.startswith(b"data: "):
                events.append(json.loads(line[6:]))
        self.assertEqual(names, [event["type"] for event in events])
        self.assertEqual([event["sequence_number"] for event in events], list(range(len(events))))
        self.assertEqual(names[:4], ["response.created", "response.in_progress",
                                     "response.output_item.added", "response.content_part.added"])
        self.assertEqual(names[-4:], ["response.output_text.done", "response.content_part.done",
                                      "response.output_item.done", "response.incomplete"])
        text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
        last = events[-1]["response"]
        self.assertEqual(text, self.text(last))
        self.assertEqual(self.http.get(f"/v1/responses/{last['id']}")[1], last)

    def test_what_is_not_stored_leaves_nothing(self):
        def sessions():
            return len(self.http.get("/ovq/v1/sessions")[1].get("sessions", []))
        first = self.post_response(input="hi")
        before = sessions()
        self.post_response(input="hi", store=False)
        second = self.post_response(input="hi", store=False, previous_response_id=first["id"])
        self.error(self.http.get(f"/v1/responses/{second['id']}"), 404)
        self.error(self.http.post("/v1/responses", {"input": "x", "temperature": -1}), 400,
                   "temperature", "temperature")
        self.assertEqual(sessions(), before)

    def test_refusals(self):
        first = self.post_response(input="hi", instructions="one")
        self.error(self.http.post("/v1/responses", {
            "input": "x", "previous_response_id": first["id"], "instructions": "two"}), 400,
            "instructions", "instructions")
        for param, field, value in (
                ("tools[0].name", "tools", [{}]), ("background", "background", True),
                ("reasoning.depth", "reasoning", {"depth": 1}),
                ("conversation", "conversation", "c"),
                ("text.format.schema", "text", {"format": {"type": "json_schema"}})):
            self.error(self.http.post("/v1/responses", {"input": "x", field: value}), 400, field,
                       param)
        self.error(self.http.post("/v1/responses", {}), 400, "input", "input")
        self.error(self.http.post("/v1/responses", {"input": [{"type": "item_reference"}]}), 400,
                   "input[0].id")
        self.error(self.http.get("/v1/responses/resp_1"), 404)


class ResponsesOnDisk(unittest.TestCase):
    def start(self):
        server = serve("--session-dir", http_case.path_of("sessions"), "--session-ttl", "1h")
        self.addCleanup(server.kill)
        http = HttpClient(http_port(server))
        self.addCleanup(http.close)
        return server, http

    def test_a_kill_takes_nothing_of_what_was_stored(self):
        body = {"max_output_tokens": 6, "temperature": 0, "instructions": "be brief"}
        server, http = self.start()
        first = http.post("/v1/responses", {**body, "input": "hello"})[1]
        second = http.response({**body, "input": [{"role": "user", "content": "more"}], "stream": True,
                                "previous_response_id": first["id"]})
        gone = http.post("/v1/responses", {**body, "input": "a secret"})[1]
        input_items = http.get(f"/v1/responses/{second['id']}/input_items")[1]
        self.assertEqual(http.call("DELETE", f"/v1/responses/{gone['id']}")[0], 200)
        going_on = {**body, "input": "and", "previous_response_id": second["id"]}
        expected = http.post("/v1/responses", going_on)[1]["output"][0]["content"]
        server.kill()
        server, http = self.start()
        for response in (first, second):
            self.assertEqual(http.get(f"/v1/responses/{response['id']}")[1], response)
        self.assertEqual(http.get(f"/v1/responses/{gone['id']}")[0], 404)
        self.assertEqual(http.get(f"/v1/responses/{second['id']}/input_items")[1], input_items)
        self.assertEqual(input_items["data"][0]["content"], [{"type": "input_text", "text": "more"}])
        item = {"type": "item_reference", "id": first["output"][0]["id"]}
        self.assertEqual(http.post("/v1/responses", {**body, "input": [item, {"role": "user", "content": "x"}]})[0], 200)
        # Instructions are known again.
        other = http.post("/v1/responses", {**going_on, "instructions": "be long"})
        self.assertEqual((other[0], other[1]["error"]["param"]), (400, "instructions"))
        self.assertEqual(http.post("/v1/responses", going_on)[1]["output"][0]["content"], expected)
        folder = http_case.path_of("sessions")
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    self.assertNotIn(b"a secret", file.read(), name)
                self.assertEqual(os.stat(path).st_mode & 0o777, 0o600, name)
        for response in (first, second):
            self.assertEqual(http.call("DELETE", f"/v1/responses/{response['id']}")[0], 200)
            # A snapshot that is being written appears once more.
            wait_for(lambda: not [name for name in os.listdir(folder)
                                  if name.startswith(response["id"].removeprefix("resp_"))],
                     "the files' end")


class Native(HttpCase):
    def test_a_session(self):
        info = self.http.get("/ovq/v1/info?positions=1,1000")[1]
        self.assertEqual([size["position"] for size in info["stateSizes"]], ["1", "1000"])
        status, session, _ = self.http.post("/ovq/v1/sessions", {"prompt": {"text": "hello"}})
        self.assertEqual((status, session["position"]), (200, "5"), session)
        path = f"/ovq/v1/sessions/{session['sessionId']}"
        events = self.http.stream(path + "/generate", {
            "prompt": {"text": " you"}, "stop": {"maxTokens": 6}, "sampling": {"temperature": 0}})
        self.assertEqual(list(events[0]), ["started"])
        finished = events[-1]["finished"]
        self.assertEqual((finished["reason"], finished["usage"]["position"]),
                         ("FINISH_REASON_LENGTH", "15"))
        fork = self.http.post(path + "/fork", {})[1]["sessions"][0]
        self.assertEqual(fork["position"], "15")
        back = self.http.post(path + "/rewind", {"position": 9})[1]
        self.assertEqual(back["session"]["position"], "9")
        again = self.http.stream(path + "/generate", {
            "stop": {"max_tokens": 6}, "sampling": {"temperature": 0}})
        text = ["".join(e["chunk"].get("text", "") for e in run if "chunk" in e)
                for run in (events, again)]
        self.assertEqual(*text)
        listed = self.http.get("/ovq/v1/sessions?page_size=1")[1]
        self.assertEqual(len(listed["sessions"]), 1)
        self.assertTrue(listed["nextPageToken"])
        self.assertEqual(self.http.get(path)[1]["position"], "15")
        # The engine's figures are those of an iteration that has ended.
        wait_for(lambda: int(self.http.get("/ovq/v1/status")[1]["sessionsIdle"]) >= 2, "two idle sessions")
        for one in (session, fork):
            gone = f"/ovq/v1/sessions/{one['sessionId']}"
            self.assertEqual(self.http.call("DELETE", gone)[:2], (200, {}))
            error = self.error(self.http.get(gone), 404)
            self.assertEqual(error["status"], "NOT_FOUND")

    def test_bad_requests(self):
        self.error(self.http.post("/ovq/v1/sessions", {"ttll": "3s"}), 400, "ttll")
        self.error(self.http.post("/ovq/v1/sessions", {"ttl": "-3s"}), 400, "ttl", "ttl")
        self.error(self.http.get("/ovq/v1/info?positions=x"), 400, "positions")
        wrong = self.http.get("/ovq/v1/sessions?page_size=1&page_tokn=x")
        self.assertEqual(self.error(wrong, 400, "query")["message"],
                         "query: expected one of page_size, page_token, got 'page_tokn'")
        self.error(self.http.get("/ovq/v1/status?wait=1"), 400, "query")
        for fine in ("/v1/models?beta=true", "/ovq/v1/sessions?page_size=&page_token="):
            self.assertEqual(self.http.get(fine)[0], 200, fine)
        self.error(self.http.get("/ovq/v1/sessions/nothing"), 404, "not found")
        self.error(self.http.post("/ovq/v1/generate", {"prompt": {"text": ""}}), 400, "prompt")
        self.error(self.http.post("/ovq/v1/sessions", b"[1]"), 400, "body")


if __name__ == "__main__":
    main()
