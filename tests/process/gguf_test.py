"""Models in GGUF files compute and say what their folders do.

The files are written by tests/golden/gguf/to_gguf.py.

usage: gguf_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from http_client import HttpClient, http_port
from server_process import ROOT, ServerProcess

GOLDEN = Path(ROOT) / "tests" / "golden"
sys.path.insert(0, str(GOLDEN / "gguf"))
import to_gguf  # noqa: E402

BIN = None  # folder of the programs, set by main
# Folders whose tensors a GGUF file has to the bit.
EXACT = ("llama-smol", "mistral-null", "qwen2-tied", "qwen3-tied", "qwen3-untied-bias",
         "smollm3-nope", "olmo2-mha", "phi3-mini")
TEMPLATE = ("{{ bos_token }}{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}")
CONFIG = {"model_type": "llama", "vocab_size": 1347, "hidden_size": 64, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
          "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 512,
          "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": 1342,
          "eos_token_id": 1344}


def run(program, *arguments):
    return subprocess.run([os.path.join(BIN, program), *map(str, arguments)], capture_output=True, text=True,
                          timeout=120)


def digests(path):
    """{compute type: hashes of logits and state} of a model."""
    result = run("model_digest", "--device", "cpu", "--tokens", "100", path)
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    return dict(re.findall(r"cpu (\S+) (.*)\n", result.stdout))


def shapes():
    width, inner, rows = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    found = {"model.embed_tokens.weight": [rows, width], "lm_head.weight": [rows, width],
             "model.norm.weight": [width]}
    for i in range(CONFIG["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{layer}{norm}.weight"] = [width]
        for name, out in (("q", width), ("k", width // 2), ("v", width // 2), ("o", width)):
            found[f"{layer}self_attn.{name}_proj.weight"] = [out, width]
        for name in ("gate", "up"):
            found[f"{layer}mlp.{name}_proj.weight"] = [inner, width]
        found[f"{layer}mlp.down_proj.weight"] = [width, inner]
    return found


def q8(floats):
    """The nearest numbers that Q8_0 has, as its decoder gives them."""
    out = []
    blocks = to_gguf.encode(floats, 0, "Q8_0", None)
    for at in range(0, len(blocks), 34):
        scale, *quants = struct.unpack_from("<e32b", blocks, at)
        out += [to_gguf.float32(scale * quant) for quant in quants]
    return out


def write_llama(folder, tokenizer):
    """A small random model, whose matrices Q8_0 has exactly."""
    folder.mkdir()
    rng = random.Random(5)
    header, data = {}, b""
    for name, shape in shapes().items():
        if len(shape) == 1:
            floats = [1.0] * shape[0]
        else:
            floats = q8([rng.gauss(0, 1 / shape[1] ** 0.5) for _ in range(shape[0] * shape[1])])
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(floats)]}
        data += struct.pack(f"<{len(floats)}f", *floats)
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"chat_template": TEMPLATE, "bos_token": "<|bos|>", "eos_token": "<|end|>"}))


class Gguf(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="ovq_gguf_test_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.tokenizer = json.loads((GOLDEN / "tokenizers" / "own-llama3-type" / "tokenizer.json").read_text())
        cls.model = cls.folder / "small"
        write_llama(cls.model, cls.tokenizer)

    def convert(self, name, folder, *arguments, **options):
        path = self.folder / name
        path.write_bytes(to_gguf.convert(folder, *arguments, **options))
        return path

    def small(self, type_name):
        return self.convert(f"small-{type_name}.gguf", self.model, type_name, self.tokenizer, "llama-bpe",
                            template=TEMPLATE)

    def test_logits_are_those_of_the_folder(self):
        for name in EXACT:
            with self.subTest(name):
                folder = GOLDEN / "published" / name
                self.assertEqual(digests(self.convert(f"{name}.gguf", folder)), digests(folder))

    def test_blocks_are_widened_exactly(self):
        of_folder = digests(self.model)
        self.assertEqual(digests(self.small("F32")), of_folder)
        self.assertEqual(digests(self.small("Q8_0"))["F32"], of_folder["F32"])
        self.assertNotEqual(digests(self.small("F16"))["F32"], of_folder["F32"])

    def test_inspect_and_plan(self):
        path = self.small("Q8_0")
        report = json.loads(run("ovq-inspect", path, "--json").stdout)
        self.assertEqual(report["problems"], [])
        self.assertEqual((report["family"], report["dtype"]), ("llama", "BF16"))
        self.assertEqual(report["tensor_types"], {"F32": 5, "Q8_0": 16})
        self.assertEqual((report["tokenizer"]["kind"], report["chat_template"]), ("bpe", path.name))
        self.assertEqual(report["parameters"],
                         json.loads(run("ovq-inspect", self.model, "--json").stdout)["parameters"])
        plan = run("ovq-server", "--model", path, "--plan", "--state-memory", "64M")
        self.assertIn("model small-Q8_0, memory model", plan.stdout, plan.stderr)
        first = GOLDEN / "gguf" / "granitemoehybrid-moe-00001-of-00002.gguf"
        report = json.loads(run("ovq-inspect", first, "--json").stdout)
        self.assertEqual((report["problems"], report["family"]), ([], "granitemoehybrid"))
        self.assertEqual(report["parameters"], json.loads(
            run("ovq-inspect", GOLDEN / "published" / "granitemoehybrid-moe", "--json").stdout)["parameters"])
        second = run("ovq-inspect", str(first).replace("-00001-", "-00002-"))
        self.assertIn("is part 2 of 2 of a model: name the first, which ends with -00001-of-00002.gguf", second.stdout)
        path.write_bytes(path.read_bytes()[:9000])
        result = run("ovq-inspect", path)
        self.assertEqual(result.returncode, 1)
        self.assertIn("truncated?", result.stdout)
        refused = run("ovq-server", "--model", path)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn(f"{path}: ", refused.stderr)

    def stream(self, model, messages):
        """The texts of a streamed answer, and how it ended."""
        with ServerProcess(os.path.join(BIN, "ovq-server"), str(model), "--state-memory", "64M", "--threads", "1",
                           "--compute-dtype", "f32", "--http-listen", "127.0.0.1:0") as server:
            http = HttpClient(http_port(server))
            self.addCleanup(http.close)
            name = http.get("/v1/models")[1]["data"][0]["id"]
            events = http.stream("/v1/chat/completions", {
                "messages": messages, "temperature": 0, "max_tokens": 24, "stream": True,
                "stream_options": {"include_usage": True}})
            server.terminate()
            server.wait()
        texts = [event["choices"][0]["delta"].get("content", "") for event in events if event["choices"]]
        return name, "".join(texts), events[-1]["usage"]

    def test_a_server_streams_what_the_folders_does(self):
        messages = [{"role": "user", "content": "The cat isn't here, is it? 12345"}]
        name, text, usage = self.stream(self.model, messages)
        self.assertEqual(name, "small")
        self.assertNotEqual(text, "")
        for type_name in ("F32", "Q8_0"):
            self.assertEqual(self.stream(self.small(type_name), messages), (f"small-{type_name}", text, usage))


def main():
    global BIN
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BIN = os.path.join(options.build, "bin")
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
