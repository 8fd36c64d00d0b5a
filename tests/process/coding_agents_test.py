"""Coding agents of npm's, unchanged but for their settings, each change a file by a call of the served model.

usage: coding_agents_test.py --build BUILD_FOLDER [unittest arguments]

No small model can read the prompts of these agents, of 12,000 tokens and more. So the model here is made for this
test: its template ends a prompt with one of two tokens, whether a tool has answered yet or not, and behind each the
model writes one text. All else is the product's: the agents' requests and tools, the template, prefill, the answer
taken apart, its stream, and the result that comes back.
"""

import argparse
import array
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from http_client import http_port
from server_process import ROOT, ServerProcess

AGENTS = {"@openai/codex": "0.171.0", "opencode-ai": "1.18.33", "@qwen-code/qwen-code": "0.24.4"}
WRITTEN = "buy milk"
BUILD = None


def byte_letters():
    """The letters of byte-level vocabularies, one for each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(256 + hidden.index(byte)) for byte in range(256)]


def write_model(folder, name, arguments):
    """A model that calls the tool `name` where the prompt offers it and no result follows, and else says Done."""
    call = "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"
    end, asked, answered, calls, done = range(256, 261)
    texts = {end: "<|im_end|>", asked: "<|asked|>", answered: "<|answered|>", calls: call, done: "Done."}
    follows = {asked: calls, calls: end, answered: done, done: end}
    size = 264  # of the vocabulary and of the model: token i is the i-th unit vector
    os.makedirs(folder)
    config = {"model_type": "ovq_hybrid", "vocab_size": size, "hidden_size": size, "num_hidden_layers": 1,
              "num_attention_heads": 1, "head_dim": 32, "intermediate_size": 32, "hidden_act": "silu",
              "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "layer_types": ["sliding_attention"],
              "sliding_window": 32, "rope_theta": 10000.0, "torch_dtype": "float32", "eos_token_id": end}
    prefix, zeros = "model.layers.0.", lambda *shape: (shape, {})
    tensors = {"model.embed_tokens.weight": ((size, size), {i * size + i: 1.0 for i in range(size)}),
               "lm_head.weight": ((size, size), {after * size + before: 4.0 for before, after in follows.items()}),
               prefix + "self_attn.o_proj.weight": zeros(size, 32), prefix + "self_attn.beta": zeros(1),
               prefix + "mlp.down_proj.weight": zeros(size, 32)}
    for i in ("q_proj", "k_proj", "v_proj"):
        tensors[f"{prefix}self_attn.{i}.weight"] = zeros(32, size)
    for i in ("gate_proj", "up_proj"):
        tensors[f"{prefix}mlp.{i}.weight"] = zeros(32, size)
    for i in ("model.norm.weight", prefix + "input_layernorm.weight", prefix + "post_attention_layernorm.weight"):
        tensors[i] = ((size,), dict.fromkeys(range(size), 1.0))
    header, blobs, offset = {}, [], 0
    for tensor, (shape, values) in tensors.items():
        data = array.array("f", bytes(4 * shape[0] * (shape[1] if len(shape) > 1 else 1)))
        for place, value in values.items():
            data[place] = value
        blobs.append(data.tobytes())
        header[tensor] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + len(blobs[-1])]}
        offset += len(blobs[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    tokenizer = {"version": "1.0", "added_tokens": [
        {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": i < calls} for i, text in texts.items()],
        "normalizer": None, "post_processor": None, "decoder": {"type": "ByteLevel"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "vocab": {letter: i for i, letter in enumerate(byte_letters())}, "merges": []}}
    with open(os.path.join(ROOT, "models", "scripted-chat", "chat_template.jinja")) as file:
        template = file.read()
    opening = "{{- '<|im_start|>assistant\\n' -}}\n  {%- set effort"
    assert opening in template
    template = template.replace(opening, opening.replace("{%- set effort", """{%- set offers = namespace(it=false) -%}
  {%- for tool in tools or [] -%}
    {%- if (tool.function if tool.function else tool).name == '""" + name + """' -%}
      {%- set offers.it = true -%}
    {%- endif -%}
  {%- endfor -%}
  {{- '<|asked|>' if offers.it and messages[-1].role != 'tool' else '<|answered|>' -}}
  {%- set effort"""))
    for file_name, content in (("config.json", json.dumps(config)), ("tokenizer.json", json.dumps(tokenizer)),
                               ("chat_template.jinja", template)):
        with open(os.path.join(folder, file_name), "w") as file:
            file.write(content)


class Agents(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ovq_coding_agents_test_")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.project = os.path.join(self.folder, "project")
        self.notes = os.path.join(self.project, "notes.txt")
        os.mkdir(self.project)
        with open(self.notes, "w") as file:
            file.write("empty\n")

    def serve(self, name, arguments):
        model = os.path.join(self.folder, "made")
        write_model(model, name, arguments)
        self.server = ServerProcess(os.path.join(BUILD, "bin", "ovq-server"), model, "--threads", "1", "--http-listen",
                                    "127.0.0.1:0")
        self.addCleanup(self.server.kill)
        return f"http://127.0.0.1:{http_port(self.server)}/v1"

    def run_agent(self, command, **env):
        command[0] = os.path.join(BUILD, "npm", "node_modules", command[0])
        env = {**os.environ, "HOME": self.folder, "PWD": self.project, "OPENAI_API_KEY": "none", **env}
        run = subprocess.run(command, cwd=self.project, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                             timeout=240)
        told = run.stdout + run.stderr + self.server.stderr()[-4000:]
        self.assertEqual(run.returncode, 0, told)
        with open(self.notes) as file:
            self.assertEqual(file.read().strip(), WRITTEN, told)
        self.assertIn("Done.", run.stdout, told)

    def test_codex(self):
        url = self.serve("exec_command", {"cmd": f"echo {WRITTEN} > notes.txt"})
        os.mkdir(os.path.join(self.folder, ".codex"))
        with open(os.path.join(self.folder, ".codex", "config.toml"), "w") as file:
            file.write('model = "made"\nmodel_provider = "ovq"\nweb_search = "disabled"\n'
                       f'[model_providers.ovq]\nname = "ovq"\nbase_url = "{url}"\n')
        self.run_agent([".bin/codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
                        "Write a note."])

    def test_opencode(self):
        url = self.serve("bash", {"command": f"echo {WRITTEN} > notes.txt", "description": "Writes a note"})
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "ovq", "options": {"baseURL": url, "apiKey": "none"},
                    "models": {"made": {"tool_call": True, "temperature": True}}}
        with open(os.path.join(self.project, "opencode.json"), "w") as file:
            json.dump({"model": "ovq/made", "provider": {"ovq": provider}, "permission": {"bash": "allow"},
                       "autoupdate": False, "share": "disabled"}, file)
        self.run_agent(["opencode-linux-x64/bin/opencode", "run", "Write a note."], OPENCODE_DISABLE_AUTOUPDATE="1",
                       OPENCODE_DISABLE_MODELS_FETCH="1", OPENCODE_DISABLE_LSP_DOWNLOAD="1")

    def test_qwen_code(self):
        url = self.serve("run_shell_command", {"command": f"echo {WRITTEN} > notes.txt", "is_background": False})
        self.run_agent([".bin/qwen", "--auth-type", "openai", "--yolo", "--prompt", "Write a note."], OPENAI_BASE_URL=url,
                       OPENAI_MODEL="made")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BUILD = os.path.abspath(options.build)
    # They are not in Debian, and tests download nothing.
    at = os.path.join(BUILD, "npm")
    missing = [name for name in AGENTS if not os.path.isdir(os.path.join(at, "node_modules", name))]
    if shutil.which("node") is None or missing:
        packages = " ".join(f"{name}@{version}" for name, version in AGENTS.items())
        print(f"SKIPPED: no node, or no packages ({', '.join(missing)}): npm install --prefix {at} --no-save "
              f"--ignore-scripts {packages}")
        sys.exit(0)
    unittest.main(argv=[sys.argv[0], *rest])
