#!/usr/bin/python3
"""Compares streaming of many answers at once over HTTP (as events) and over gRPC.

usage: bench_http.py [--build build/cpu] [--model models/python-bytes] [--streams 200] [--tokens 64]
                     [--passes 5] [--server-flag FLAG ...]

Each client is one thread with a connection for each stream; it parses only where messages begin, so that
the server makes the difference. The fronts alternate, pass by pass. Prints tokens a second from the first
request to the last answer's end, the 99th percentile of the time to the first token, and the longest pause
of any stream. Ends with 1 if HTTP's median
is below 0.9 of gRPC's, a stream stood still for more than 5 s, or an answer is incomplete.
"""

import argparse
import json
import os
import selectors
import socket
import statistics
import struct
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "process"))

import raw_http2 as h2
from http_client import http_port
from server_process import ServerProcess, load_stubs

BAR, LONGEST_STALL = 0.9, 5.0
WINDOW = (1 << 31) - 1


class Stream:
    def __init__(self, port, data):
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self.data, self.rest = data, b""
        self.started = False
        self.tokens, self.first, self.last, self.stall = 0, None, None, 0.0

    def seen(self, tokens, now):
        if tokens == 0:
            return
        self.tokens += tokens
        if self.first is None:
            self.first = now
        else:
            self.stall = max(self.stall, now - self.last)
        self.last = now


def take_http(stream, part, now):
    """True at the end of the stream. Events begin with "data: {"."""
    text = stream.rest + part
    stream.seen(text.count(b'"finish_reason":null}'), now)
    end = text.rfind(b"\n\n")
    stream.rest = text[end + 2:]
    return text.endswith(b"0\r\n\r\n")


def take_grpc(stream, part, now):
    """True at the end of the stream. Each DATA frame is a message: the first is Started, the last one Finished,
    which is counted as a token."""
    text, at, messages = stream.rest + part, 0, 0
    end = False
    while len(text) - at >= 9:
        length = int.from_bytes(text[at:at + 3], "big")
        if len(text) - at < 9 + length:
            break
        kind, flags = text[at + 3], text[at + 4]
        messages += kind == h2.DATA and length > 0
        end |= kind == h2.HEADERS and bool(flags & h2.END_STREAM)
        at += 9 + length
    stream.rest = text[at:]
    if messages and not stream.started:
        stream.started, messages = True, messages - 1
    stream.seen(messages, now)
    return end


def run(streams, take):
    """(tokens by stream, seconds, streams)"""
    selector = selectors.DefaultSelector()
    for stream in streams:
        selector.register(stream.socket, selectors.EVENT_READ, stream)
    begin = time.monotonic()
    for stream in streams:
        stream.socket.sendall(stream.data)
    left = len(streams)
    while left:
        for key, _ in selector.select(60):
            part = key.fileobj.recv(1 << 16)
            if not part or take(key.data, part, time.monotonic()):
                selector.unregister(key.fileobj)
                key.fileobj.close()
                left -= 1
    return time.monotonic() - begin, begin


def measure(args, port, data, take, extra):
    streams = [Stream(port, data) for _ in range(args.streams)]
    seconds, begin = run(streams, take)
    whole = all(stream.tokens >= args.tokens - extra for stream in streams)
    firsts = sorted(stream.first - begin for stream in streams)
    return (args.streams * args.tokens / seconds, firsts[int(0.99 * len(firsts))],
            max(stream.stall for stream in streams), whole)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "cpu"))
    parser.add_argument("--model", default=os.path.join(ROOT, "models", "python-bytes"))
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--server-flag", action="append", default=[])
    args = parser.parse_args()
    prompt = list(range(100, 120))
    body = json.dumps({"prompt": prompt, "max_tokens": args.tokens, "stream": True, "ignore_eos": True}).encode()
    http_data = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 b"Content-Length: %d\r\n\r\n" % len(body)) + body
    with tempfile.TemporaryDirectory() as folder:
        pb, _ = load_stubs(folder)
        request = pb.GenerateRequest()
        request.prompt.token_ids.ids.extend(prompt)
        request.stop.max_tokens, request.stop.ignore_eos = args.tokens, True
        grpc_data = (h2.PREFACE + h2.settings(initial_window_size=WINDOW)
                     + h2.frame(h2.WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW - h2.CONNECTION_WINDOW))
                     + h2.call(1, "ovq.v1.InferenceService/Generate")
                     + h2.data_frames(1, h2.message(request.SerializeToString())))
        rows = {"gRPC": [], "HTTP": []}
        with ServerProcess(os.path.join(args.build, "bin", "ovq-server"), args.model, "--log-requests", "none",
                           "--http-listen", "127.0.0.1:0", *args.server_flag) as server:
            fronts = {"gRPC": (server.port, grpc_data, take_grpc), "HTTP": (http_port(server), http_data, take_http)}
            for name, front in fronts.items():  # warm
                measure(args, *front, extra=0)
            for i in range(args.passes):
                for name, front in list(fronts.items())[::-1 if i % 2 else 1]:
                    rows[name].append(measure(args, *front, extra=0))
    print(f"{args.streams} streams of {args.tokens} tokens, {args.passes} passes, medians")
    print("| | tokens/s | first token, p99 | longest stall |\n|---|---:|---:|---:|")
    for name, row in rows.items():
        print(f"| {name} | {statistics.median(r[0] for r in row):,.0f} | {statistics.median(r[1] for r in row):.2f} s "
              f"| {max(r[2] for r in row):.2f} s |")
    ratio = statistics.median(h[0] / g[0] for h, g in zip(rows["HTTP"], rows["gRPC"]))
    whole = all(r[3] for row in rows.values() for r in row)
    stalls = max(r[2] for r in rows["HTTP"])
    print(f"HTTP / gRPC, median of the pairs: {ratio:.3f}{'' if whole else '; answers were not whole'}")
    return 0 if whole and ratio >= BAR and stalls <= LONGEST_STALL else 1


if __name__ == "__main__":
    sys.exit(main())
