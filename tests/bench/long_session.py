#!/usr/bin/env python3
"""Checks that the cost of a session does not depend on its length.

usage: long_session.py [--build build/cpu] [--model models/python-bytes] [--tokens 10000000] [--turn 5000]
                       [--keep-tokens] [--seed 1]

Sends random text in turns, the first ones of every size that a batch can have, each with an answer of 16 tokens.
Prints, at powers of ten and powers of two between them, the session's bytes, the server's resident memory and its
CPU time per prefilled token since the line before. At the end: memory growth since 100,000 tokens, and CPU time per
token of the last stretch and of the first one after them. With --keep-tokens the session has a log of its tokens,
4 bytes each.
"""

import argparse
import os
import random
import string
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "process"), os.path.join(ROOT, "clients", "python")]

from ovq_client import Client, Finished
from server_process import ServerProcess

FROM = 100_000  # from here on the state does not grow
# Batch sizes. Matrix products generate code when a size first occurs (kernels/ops/matmul_cpu.cc), so all
# sizes come first: a rare one would otherwise look like growth.
ROWS = [*range(2, 9), 12, 16, 24, 32, 48, *range(64, 513, 64)]


def cpu_seconds(server):
    with open(f"/proc/{server.process.pid}/stat") as file:
        user, system = file.read().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "cpu"))
    parser.add_argument("--model", default=os.path.join(ROOT, "models", "python-bytes"))
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--turn", type=int, default=5_000, help="tokens that a turn reads")
    parser.add_argument("--keep-tokens", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    flags = ("--threads", "1", "--log-requests", "none", "--checkpoint-memory", "0", "--session-ttl", "24h")
    marks = sorted({min(args.tokens, FROM * 2**k) for k in range(64)} | {10**k for k in range(3, 20) if 10**k < args.tokens})
    stretches, resident, log = [], {}, {}
    with ServerProcess(os.path.join(args.build, "bin", "ovq-server"), args.model, *flags) as server, \
            Client(server.address) as client:
        session = client.create_session("x", keep_tokens=args.keep_tokens)  # plus the tokens that text begins with
        position = begun_at = session.position
        begin = cpu_seconds(server)
        lengths = [rows - 1 for rows in ROWS]  # of the first turns; one token is pending
        for mark in marks:
            while position < mark:
                length = lengths.pop() if lengths else min(args.turn, max(mark - position - 16, 1))
                text = "".join(rng.choices(string.printable, k=length))
                for event in client.generate(text, session_id=session.session_id, max_tokens=16, ignore_eos=True,
                                             timeout=600):
                    if isinstance(event, Finished):
                        if event.usage.position != position + len(text) + 16:
                            raise AssertionError(f"at {event.usage.position} after {position} and {len(text)} + 16")
                        position = event.usage.position
            now = cpu_seconds(server)
            resident[mark], log[mark] = server.resident_bytes(), 4 * position * args.keep_tokens
            us = 1e6 * (now - begin) / (position - begun_at)
            if mark > FROM:
                stretches.append(us)
            print(f"{position} tokens: {client.get_session(session.session_id).state_bytes} bytes of state, "
                  f"{resident[mark] / 2**20:.2f} MiB resident, {us:.1f} us a token", flush=True)
            begun_at, begin = position, cpu_seconds(server)
    if args.tokens > FROM:
        grown = resident[args.tokens] - log[args.tokens] - (resident[FROM] - log[FROM])
        print(f"since {FROM} tokens: {grown / 2**20:+.2f} MiB{', its log apart' if args.keep_tokens else ''}; "
              f"processor time per token in the last stretch {stretches[-1] / stretches[0]:.3f} of the first one's")


if __name__ == "__main__":
    main()
