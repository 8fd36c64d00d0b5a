#!/usr/bin/env python3
"""More sessions than memory holds: their states are swapped in from disk and out to it.

usage: many_sessions.py [--build build/cpu] [--model models/python-bytes] [--sessions 10000] [--pool 100]
                        [--prompt 200] [--rounds 2] [--seed 1]

Opens the sessions, then sends each a turn in random order, round after round, and checks that each is where it was
left. Prints the server's resident memory over sessions and rounds, turns a second, and the mean cost of
swapping in, swapping out and of the disk, by the server's own metrics.
"""

import argparse
import os
import random
import re
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "process"), os.path.join(ROOT, "clients", "python")]

from ovq_client import Client, Finished
from server_process import ServerProcess

CENTROIDS = 64


def mean_ms(page, name, label):
    total, count = (float(re.search(rf"^{name}_{part}\{{[^}}]*{label}[^}}]*\}} (\S+)$", page, re.M).group(1))
                    for part in ("sum", "count"))
    return f"{1000 * total / count:.2f} ms of {count:.0f}" if count else "none"


def position_after(client, session_id, text, n):
    for event in client.generate(text, session_id=session_id, max_tokens=n, ignore_eos=True, timeout=120):
        if isinstance(event, Finished):
            return event.usage.position
    raise AssertionError("an answer without an end")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "cpu"))
    parser.add_argument("--model", default=os.path.join(ROOT, "models", "python-bytes"))
    parser.add_argument("--sessions", type=int, default=10000)
    parser.add_argument("--pool", type=int, default=100, help="sessions that the memory holds")
    parser.add_argument("--prompt", type=int, default=200, help="tokens of the first prompt")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    binary = os.path.join(args.build, "bin", "ovq-server")
    with ServerProcess(binary, args.model, "--threads", "1", "--metrics-address", "") as server, \
            Client(server.address) as client:
        cap = client.model_info(max_centroids=CENTROIDS).state_bytes_cap
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--threads", "1", "--session-dir", folder, "--admission", "overcommit", "--max-sessions",
                 str(args.sessions + 1), "--state-memory", str(args.pool * cap), "--checkpoint-memory", "0",
                 "--log-requests", "none", "--session-ttl", "24h")
        with ServerProcess(binary, args.model, *flags) as server, Client(server.address) as client:
            show = lambda what: print(f"{what}: {server.resident_bytes() / 2**20:.1f} MiB resident", flush=True)
            print(f"{args.sessions} sessions of {cap} bytes, memory for {args.pool}")
            sessions = []
            for i in range(args.sessions):
                session = client.create_session("x" * args.prompt, max_centroids=CENTROIDS)
                sessions.append([session.session_id, session.position])
                if i + 1 in (args.pool, args.sessions // 10, args.sessions // 2, args.sessions):
                    show(f"{i + 1} sessions opened")
            for round_number in range(args.rounds):
                rng.shuffle(sessions)
                begin = time.monotonic()
                for session in sessions:
                    after = position_after(client, session[0], "hello", 2)
                    if after != session[1] + 7:
                        raise AssertionError(f"{session[0]}: at {after}, was left at {session[1]}")
                    session[1] = after
                show(f"round {round_number + 1}, {args.sessions / (time.monotonic() - begin):.0f} turns/s")
            page = server.metrics()
            print("wake:", mean_ms(page, "ovq_session_event_duration_seconds", 'event="wake"'))
            for kind in ("append", "snapshot", "read"):
                print(f"disk, {kind}:", mean_ms(page, "ovq_session_disk_duration_seconds", f'kind="{kind}"'))


if __name__ == "__main__":
    main()
