"""Continues a text with a native byte-level model.

This is the reference: it processes the whole text again for every new byte. The server keeps a
state."""

import argparse
import sys

import torch

from ovq.config import ConfigError
from ovq.model import DTYPES, load_model


def next_token(logits, temperature, generator):
    if temperature == 0:
        return int(logits.argmax())
    probabilities = torch.softmax(logits / temperature, dim=-1)
    return int(torch.multinomial(probabilities, 1, generator=generator))


@torch.no_grad()
def complete(model, prompt, n_tokens, temperature, seed):
    """Returns the bytes that follow prompt, up to n_tokens or the end of the document."""
    config, generator = model.config, torch.Generator().manual_seed(seed)
    tokens = [config.bos_token_id] if config.bos_token_id >= 0 else []
    tokens += [byte + config.tokenizer_byte_offset for byte in prompt]
    new = []
    for _ in range(n_tokens):
        token = next_token(model(torch.tensor([tokens + new]))[0, -1], temperature, generator)
        if not 0 <= token - config.tokenizer_byte_offset < 256:
            break  # a document mark
        new.append(token)
    return bytes(token - config.tokenizer_byte_offset for token in new)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="native model folder")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--tokens", type=int, default=200, help="bytes to add")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the likeliest byte")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compute-dtype", default="float32", choices=("float32", "bfloat16"))
    args = parser.parse_args()
    if not args.temperature >= 0:
        raise ValueError(f"--temperature: {args.temperature} is neither positive nor 0")
    model = load_model(args.model, DTYPES[args.compute_dtype])
    if model.config.tokenizer != "bytes":
        raise ValueError(f"{args.model}: tokenizer is not \"bytes\"")
    if not args.prompt and model.config.bos_token_id < 0:
        raise ValueError("--prompt: empty, and the model has no bos_token_id to start from")
    new = complete(model, args.prompt.encode(), args.tokens, args.temperature, args.seed)
    sys.stdout.write(args.prompt + new.decode("utf-8", errors="replace") + "\n")


if __name__ == "__main__":
    try:
        main()
    except (ConfigError, ValueError, OSError) as error:
        sys.exit(f"sample.py: {error}")
