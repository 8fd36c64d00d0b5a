"""Serves a published hybrid of full size on random weights, streams tokens and prints the server's memory use.

usage: full_size.py --build BUILD_FOLDER [--config tests/bench/shapes/granite-4.0-h-350m.json] [--keep FOLDER]
                    [--prompt 64] [--tokens 32] [--memory closest-pair] [server's flags]

The config may belong to any family: ovq-inspect says which tensors it needs. --keep: folder for the model,
which is reused if it exists; bench_decode --model takes the same folder.
"""

import argparse
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import grpc
import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "process"))
from server_process import ServerProcess, load_stubs  # noqa: E402

_MISSING = re.compile(r"model\.safetensors: tensor '(.+)' is missing; expected \[([0-9, ]*)\]")


def missing_tensors(inspect, folder):
    """Names and shapes of tensors that the config needs and the weights lack, at most 200."""
    run = subprocess.run([inspect, folder, "--json"], capture_output=True, text=True)
    problems = [problem for problem in json.loads(run.stdout)["problems"]
                if problem != "and more problems"]
    found = [_MISSING.fullmatch(problem) for problem in problems]
    if None in found:
        raise SystemExit(f"{folder}: {problems[found.index(None)]}")
    return {match[1]: [int(size) for size in match[2].split(",")] for match in found}


def write_safetensors(path, shapes):
    """BF16 weights: normally distributed matrices that keep the size of their input, and ones elsewhere."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    normal = np.random.default_rng(1).standard_normal(1 << 20).astype(np.float32)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for i, shape in enumerate(shapes.values()):
            if len(shape) == 1:
                numbers = np.ones(shape, np.float32)
            else:  # the same numbers again, from another one on
                numbers = np.resize(np.roll(normal, 7919 * i), math.prod(shape))
                numbers *= math.prod(shape[1:]) ** -0.5
            file.write((numbers.view(np.uint32) >> 16).astype("<u2").tobytes())


def write_model(inspect, config, folder):
    os.makedirs(folder, exist_ok=True)
    shutil.copyfile(config, os.path.join(folder, "config.json"))
    path = os.path.join(folder, "model.safetensors")
    if not os.path.exists(path):
        shapes, missing = {}, True
        while missing:
            write_safetensors(path, shapes)
            missing = missing_tensors(inspect, folder)
            shapes.update(missing)
    if missing_tensors(inspect, folder):
        raise SystemExit(f"{folder}: holds another model; choose another folder")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--config", default=os.path.join(ROOT, "tests", "bench", "shapes",
                                                         "granite-4.0-h-350m.json"))
    parser.add_argument("--keep")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of it")
    parser.add_argument("--tokens", type=int, default=32, help="of the answer")
    options, flags = parser.parse_known_args()
    programs = os.path.join(options.build, "bin")
    with tempfile.TemporaryDirectory(prefix="ovq_full_size_") as temporary:
        folder = options.keep or os.path.join(temporary, "model")
        write_model(os.path.join(programs, "ovq-inspect"), options.config, folder)
        weights = os.path.getsize(os.path.join(folder, "model.safetensors"))
        pb, rpc = load_stubs(temporary)
        begin = time.monotonic()
        with ServerProcess(os.path.join(programs, "ovq-server"), folder, *flags) as server, \
                grpc.insecure_channel(server.address) as channel:
            print(f"weights {weights / 1e6:.0f} MB, serving after {time.monotonic() - begin:.1f} s, "
                  f"resident {server.resident_bytes() / 1e6:.0f} MB")
            stub = rpc.InferenceServiceStub(channel)
            info = stub.GetModelInfo(pb.GetModelInfoRequest())
            request = pb.GenerateRequest(
                prompt=pb.Prompt(token_ids=pb.TokenIds(
                    ids=[i * 7919 % info.vocab_size for i in range(options.prompt)])),
                stop=pb.StopConditions(max_tokens=options.tokens, ignore_eos=True))
            tokens, usage, first, asked = 0, None, None, time.monotonic()
            for event in stub.Generate(request):
                if event.chunk.token_ids and first is None:
                    first = time.monotonic() - begin
                tokens += len(event.chunk.token_ids)
                if event.HasField("finished"):
                    usage = event.finished.usage
            print(f"{info.parameters} parameters, memory {info.memory}; prompt of {options.prompt} "
                  f"tokens, {tokens} streamed in {time.monotonic() - asked:.1f} s, the "
                  f"first {first:.2f} s after the server's start, "
                  f"{usage.merged_tokens} merged; state {usage.state_bytes / 1e6:.1f} MB, "
                  f"resident {server.resident_bytes() / 1e6:.0f} MB")
            if tokens != options.tokens:
                raise SystemExit(f"expected {options.tokens} tokens, got {tokens}")


if __name__ == "__main__":
    main()
