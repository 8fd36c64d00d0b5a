"""Baseline in PyTorch: decode steps of a transformer of bench_cuda's shape with a full KV cache.

usage: sdpa_baseline.py --json FILE

21 layers, width 1280, 10 heads of 128, feed-forward 3200, vocabulary 32000, bfloat16, random
weights and caches; the attention is scaled_dot_product_attention with the fastest of its fused
backends, the step is replayed as a CUDA graph. Without PyTorch or a GPU it
prints the reason and writes nothing.
"""

import argparse
import json
import statistics
import sys

LAYERS, WIDTH, HEADS, HEAD_DIM, FEED_FORWARD, VOCAB = 21, 1280, 10, 128, 3200, 32000
# Context and sessions. (65536, 11) is what 80 GB hold.
SETTINGS = [(4096, 1), (4096, 16), (4096, 64), (4096, 128),
            (16384, 1), (16384, 16), (16384, 32), (32768, 16), (65536, 1), (65536, 8), (65536, 11)]
WARM_UP, REPEATS, FEWEST_REPEATS = 3, 20, 4
ENOUGH_SECONDS = 0.2  # of repeats
MEMORY_SHARE = 0.95  # share of free memory for caches
BF16_BYTES = 2
KV_BYTES_PER_TOKEN = LAYERS * HEADS * 2 * HEAD_DIM * BF16_BYTES


def make_weights(torch, device):
    def matrix(n_out, n_in):
        return torch.randn(n_out, n_in, device=device, dtype=torch.bfloat16) * n_in ** -0.5

    layers = [{"qkv": matrix(3 * HEADS * HEAD_DIM, WIDTH), "out": matrix(WIDTH, HEADS * HEAD_DIM),
               "gate_up": matrix(2 * FEED_FORWARD, WIDTH), "down": matrix(WIDTH, FEED_FORWARD)}
              for _ in range(LAYERS)]
    return {"layers": layers, "head": matrix(VOCAB, WIDTH)}


def weight_bytes(weights):
    tensors = [weights["head"]] + [w for layer in weights["layers"] for w in layer.values()]
    return sum(tensor.numel() * BF16_BYTES for tensor in tensors)


def attend(torch, q, cache):
    return torch.nn.functional.scaled_dot_product_attention(q, cache[0], cache[1])


def decode_step(torch, weights, caches, x):
    """Logits [sessions, VOCAB] of one token of each session; its key and value take the caches'
    last place. x [sessions, WIDTH]; caches [layer][2, sessions, HEADS, context, HEAD_DIM]."""
    functional = torch.nn.functional
    sessions = x.shape[0]
    for layer, cache in zip(weights["layers"], caches):
        normed = functional.layer_norm(x, (WIDTH,))
        qkv = functional.linear(normed, layer["qkv"]).view(sessions, 3, HEADS, 1, HEAD_DIM)
        cache[:, :, :, -1:].copy_(qkv[:, 1:].transpose(0, 1))
        attended = attend(torch, qkv[:, 0], cache).reshape(sessions, HEADS * HEAD_DIM)
        x = x + functional.linear(attended, layer["out"])
        gate, up = functional.linear(functional.layer_norm(x, (WIDTH,)), layer["gate_up"]).chunk(2, -1)
        x = x + functional.linear(functional.silu(gate) * up, layer["down"])
    return functional.linear(functional.layer_norm(x, (WIDTH,)), weights["head"])


def replay_seconds(torch, fn):
    """Median time of a CUDA graph of fn."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            fn()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn()
    graph.replay()
    times = []
    while len(times) < FEWEST_REPEATS or (len(times) < REPEATS and sum(times) < ENOUGH_SECONDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def fastest_backend(torch, q, caches):
    """(backend, seconds) of attention in all layers."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    best = None
    for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION"):
        backend = getattr(SDPBackend, name, None)
        if backend is None:
            continue
        try:
            with sdpa_kernel(backend):
                seconds = replay_seconds(torch, lambda: [attend(torch, q, c) for c in caches])
        except RuntimeError as error:
            print(f"{name}: {str(error).splitlines()[0]}")
            continue
        if best is None or seconds < best[1]:
            best = (backend, seconds)
    return best


def measure(torch, weights, context, sessions):
    from torch.nn.attention import sdpa_kernel

    caches = [torch.randn(2, sessions, HEADS, context, HEAD_DIM, device="cuda",
                          dtype=torch.bfloat16) for _ in range(LAYERS)]
    x = torch.randn(sessions, WIDTH, device="cuda", dtype=torch.bfloat16)
    q = torch.randn(sessions, HEADS, 1, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    best = fastest_backend(torch, q, caches)
    if best is None:
        return None
    backend, attention_seconds = best
    with sdpa_kernel(backend):
        seconds = replay_seconds(torch, lambda: decode_step(torch, weights, caches, x))
    n_bytes = weight_bytes(weights) + sessions * context * KV_BYTES_PER_TOKEN
    return {"context": context, "sessions": sessions, "backend": backend.name, "seconds": seconds,
            "attention_seconds": attention_seconds, "tokens_per_s": sessions / seconds,
            "weight_bytes": weight_bytes(weights),
            "kv_bytes_per_session": context * KV_BYTES_PER_TOKEN, "bytes": n_bytes,
            "bytes_per_s": n_bytes / seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", required=True)
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("skipped: python3 has no torch here")
        return 0
    if not torch.cuda.is_available():
        print("skipped: torch sees no GPU")
        return 0
    torch.manual_seed(1)
    with torch.no_grad():
        weights = make_weights(torch, "cuda")
        report = {"torch": torch.__version__, "figures": [], "left_out": [],
                  "memory_bytes": torch.cuda.get_device_properties(0).total_memory}
        for context, sessions in SETTINGS:
            torch.cuda.empty_cache()
            free, _ = torch.cuda.mem_get_info()
            figure, reason = None, f"{free} bytes free"
            try:
                if sessions * context * KV_BYTES_PER_TOKEN < MEMORY_SHARE * free:
                    figure = measure(torch, weights, context, sessions)
            except torch.cuda.OutOfMemoryError as error:
                reason = str(error).splitlines()[0]
            if figure is None:
                report["left_out"].append({"context": context, "sessions": sessions, "reason": reason})
                print(f"{context:6} {sessions:4} left out: {reason}")
            else:
                report["figures"].append(figure)
                print(f"{context:6} {sessions:4} {figure['seconds'] * 1e3:9.3f} ms "
                      f"{figure['tokens_per_s']:10.0f} tokens/s {figure['backend']}", flush=True)
            with open(options.json, "w") as file:
                json.dump(report, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
