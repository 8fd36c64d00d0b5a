#!/usr/bin/python3
"""Tests whether one caller can hurt others: a victim's stream and newcomers beside one attacker at a time.

A real server with its default flags; victim, newcomers and attacker are processes and connections of
their own; if an attack uses HTTP, newcomers and health checks do so, too. For each attack: the victim's tokens a second before and during it, the time to the first
token of newcomers (a new connection and 20 tokens each) before, during and after, health checks, and the
server's memory. Prints a row for each attack, and ends with 1 if a requirement is missed:

    the victim keeps 40% of its speed, a newcomer waits less than three times as long as alone and a
    second, health answers within a second, memory grows by less than 1 GiB above the states, the
    process lives, and SIGTERM ends it with 0.

--brief, which ctest runs: four short attacks, with requirements so weak that a busy machine meets them, but
not a server where one caller can stop another. An attack that misses them is repeated once, with a new look at
the victim alone: other work on the machine may have begun in between.

--slow SHARE runs the server as a slow machine would: with AVX2 alone (OVQ_MAX_ISA), and with SHARE of each
processor's time, by a control group; ends with 3 where none can be made. --isa ISA caps the instruction set
alone. With one of them --brief has three other attacks of each kind: over gRPC, over HTTP, by forms.

usage: hostile.py [--attack NAME ...] [--brief] [--slow SHARE] [--isa ISA] [--list] [--seconds S] [--build FOLDER]
                  [--model FOLDER]
"""

import argparse
import collections
import contextlib
import dataclasses
import http.client
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time

import grpc

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "process"))

import form_attacks
import http_attacks
from cpu_quota import CpuQuota, QuotaError
from http_client import http_port
from server_process import ServerProcess, load_stubs

GIB = 1 << 30
HTTP_ATTACKS = {**http_attacks.ATTACKS, **form_attacks.ATTACKS}
ANOTHER_ADDRESS = ("127.0.0.2", 0)  # over HTTP a client is an address


@dataclasses.dataclass
class Bars:
    share: float = 0.4  # of the victim's undisturbed speed
    slower: float = 3  # newcomers: at most 3 times their undisturbed time plus more_seconds
    more_seconds: float = 1.0
    health_seconds: float = 1.0
    resident: int = GIB


# Everything shares the processors with other tests; what was at fault before steps were shared out kept 0.02
# of the speed and had newcomers wait for over 10 s.
BRIEF = Bars(share=0.05, more_seconds=5.0, health_seconds=5.0)
BRIEF_ATTACKS = ("8 calls of n=64", "8 wide scores", "16 times 1M tokens", "sessions of 1M tokens, given up")
CAPPED_ATTACKS = (
    "Chat parts of 1 MiB for ever", "queue of long prompts", "64 sessions with a stream each",
    "HTTP: 500 slow readers", "HTTP: long texts to tokens", "HTTP: whole answers without end",
    "HTTP: schemas, 4,000 properties", "HTTP: regexes of exponential automata", "HTTP: n=64, masks of much work")
LARGE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
FOR_EVER = 10**9
MESSAGE = 15 << 20  # below --max-message-bytes

pb = rpc = None


class Caller:
    """A connection of its own."""

    def __init__(self, address):
        # Without a pool of its own a channel would share the connection of an equal one.
        self.channel = grpc.insecure_channel(address, [*LARGE, ("grpc.use_local_subchannel_pool", 1)])
        self.inference = rpc.InferenceServiceStub(self.channel)
        self.sessions = rpc.SessionServiceStub(self.channel)

    def generate(self, text="def main():", max_tokens=FOR_EVER, timeout=None, tokens=None, **fields):
        request = pb.GenerateRequest(**fields)
        if tokens is not None:
            request.prompt.token_ids.ids.extend(tokens)
        else:
            request.prompt.text = text
        request.stop.max_tokens = max_tokens
        request.stop.ignore_eos = True
        return request, lambda: self.inference.Generate(request, timeout=timeout)


# --- attacks: fn(address, count), until killed; count(what) tells what came of a call ---

def repeat(address, count, calls, threads=1):
    """Repeats calls(caller) on n threads of one connection."""
    caller = Caller(address)

    def loop():
        while True:
            try:
                calls(caller)
                count("OK")
            except grpc.RpcError as error:
                count(error.code().name)
                time.sleep(0.005)
    workers = [threading.Thread(target=loop, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    while True:
        time.sleep(1)


def drain(stream):
    for _ in stream:
        pass


def streams(n_calls, change=lambda request: None):
    def attack(address, count):
        def calls(caller):
            request, start = caller.generate()
            change(request)
            drain(start())
        repeat(address, count, calls, n_calls)
    return attack


def many_stop_ids(request):
    request.stop.stop_token_ids.extend([5] * 2_000_000)
    request.stop.min_tokens = request.stop.max_tokens


def most_stop_ids(request):
    request.stop.stop_token_ids.extend(range(250))
    request.stop.min_tokens = request.stop.max_tokens
    request.sampling.n = 64


def stop_strings(request):
    request.stop.stop_strings.extend("e" * 1023 + chr(97 + i) for i in range(16))
    request.sampling.n = 64


def completions(request):
    request.sampling.n = 64


def logprobs(request):
    request.sampling.n = 64
    request.output.logprobs = True
    request.output.top_logprobs = 258


def scores(n_tokens, top, threads):
    def attack(address, count):
        def calls(caller):
            request = pb.ScoreRequest(top_logprobs=top)
            request.prompt.token_ids.ids.extend([i % 200 for i in range(n_tokens)])
            caller.inference.Score(request)
        repeat(address, count, calls, threads)
    return attack


def long_prompts(threads, n_tokens=1 << 20):
    def attack(address, count):
        def calls(caller):
            _, start = caller.generate(tokens=[i % 200 for i in range(n_tokens)], max_tokens=1)
            drain(start())
        repeat(address, count, calls, threads)
    return attack


def cancelled_sessions(address, count):
    def calls(caller):
        request = pb.CreateSessionRequest()
        request.prompt.token_ids.ids.extend([1] * (1 << 20))
        caller.sessions.CreateSession(request, timeout=0.5)
    repeat(address, count, calls, 2)


def chat_parts(n_bytes):
    def attack(address, count):
        def calls(caller):
            def parts():
                yield pb.ChatRequest(open=pb.ChatOpen())
                while True:
                    yield pb.ChatRequest(turn=pb.ChatTurn(prompt=pb.Prompt(text="x" * n_bytes), more=True))
            drain(caller.inference.Chat(parts()))
        repeat(address, count, calls, 4)
    return attack


def raw(method, body, threads=4):
    def attack(address, count):
        def calls(caller):
            caller.channel.unary_unary("/ovq.v1." + method)(body())
        repeat(address, count, calls, threads)
    return attack


def field(number, payload):
    length, varint = len(payload), b""
    while length > 127:
        varint, length = varint + bytes([length & 127 | 128]), length >> 7
    return bytes([number << 3 | 2]) + varint + bytes([length]) + payload


def tokenize(address, count):
    repeat(address, count, lambda caller: caller.inference.Tokenize(
        pb.TokenizeRequest(text="word " * (MESSAGE // 5))), 4)


def detokenize(address, count):
    request = pb.DetokenizeRequest(token_ids=[i % 250 for i in range(MESSAGE // 2)])
    repeat(address, count, lambda caller: caller.inference.Detokenize(request), 4)


def positions(threads):
    def attack(address, count):
        request = pb.GetModelInfoRequest(positions=[1] * 5_000_000)
        repeat(address, count, lambda caller: caller.inference.GetModelInfo(request), threads)
    return attack


def lists(address, count):
    repeat(address, count, lambda caller: caller.sessions.ListSessions(
        pb.ListSessionsRequest(page_size=1000)), 64)


def short_deadlines(address, count):
    def calls(caller):
        time.sleep(0.02)
        _, start = caller.generate(text="x" * 400, timeout=0.001)
        drain(start())
    repeat(address, count, calls, 10)


def idle_sessions(address, count):
    def calls(caller):
        request = pb.CreateSessionRequest()
        request.ttl.seconds = 86400
        caller.sessions.CreateSession(request)
    repeat(address, count, calls, 16)


def short_sessions(address, count):
    def calls(caller):
        made = caller.sessions.CreateSession(pb.CreateSessionRequest()).session_id
        caller.sessions.DeleteSession(pb.DeleteSessionRequest(session_id=made))
    repeat(address, count, calls, 500)


def session_streams(one_for_all):
    """64 streams, each on a session of its own or all on one."""
    def attack(address, count):
        def create(caller):
            return caller.sessions.CreateSession(pb.CreateSessionRequest()).session_id
        shared = create(Caller(address)) if one_for_all else None

        def calls(caller):
            request, start = caller.generate()
            request.session_id = shared or create(caller)
            drain(start())
        repeat(address, count, calls, 64)
    return attack


def open_chats(address, count):
    callers = [Caller(address) for _ in range(2)]
    held = []
    for i in range(2000):
        more = threading.Event()

        def parts(event=more):
            yield pb.ChatRequest(open=pb.ChatOpen())
            event.wait()
        held.append((callers[i % 2].inference.Chat(parts()), more))
        count("opened")
    time.sleep(3600)


def forks(address, count):
    caller = Caller(address)
    request = pb.CreateSessionRequest()
    request.prompt.text = "x" * 2000
    made = caller.sessions.CreateSession(request).session_id
    repeat(address, count, lambda c: c.sessions.ForkSession(
        pb.ForkSessionRequest(session_id=made, count=64)), 4)


def slow_readers(n_streams):
    def attack(address, count):
        caller = Caller(address)
        held = [caller.generate()[1]() for _ in range(n_streams)]
        count(f"{len(held)} streams")
        time.sleep(3600)
    return attack


ATTACKS = {
    "2M stop ids": streams(1, many_stop_ids),
    "250 stop ids, n=64": streams(1, most_stop_ids),
    "16 long stop strings, n=64": streams(1, stop_strings),
    "n=64": streams(1, completions),
    "8 calls of n=64": streams(8, completions),
    "n=64, 258 log-probabilities": streams(1, logprobs),
    "64 streams": streams(64),
    "2,000 one-shots": streams(2000),
    "longest score": scores(1 << 20, 0, 1),
    "8 wide scores": scores(20_000, 250, 8),
    "1M tokens": long_prompts(1),
    "16 times 1M tokens": long_prompts(16),
    "queue of long prompts": long_prompts(500, 20_000),
    "sessions of 1M tokens, given up": cancelled_sessions,
    "Chat parts for ever": chat_parts(4000),
    "Chat parts of 1 MiB for ever": chat_parts(1 << 20),
    "unknown fields": raw("InferenceService/Tokenize", lambda: b"".join([field(15, b"")]) * (MESSAGE // 2)),
    "unknown groups": raw("InferenceService/Tokenize", lambda: bytes([15 << 3 | 3, 15 << 3 | 4]) * (MESSAGE // 2)),
    "empty messages": raw("InferenceService/ApplyTemplate",
                          lambda: field(1, field(1, b"") * (MESSAGE // 2))),
    "empty stop strings": raw("InferenceService/Generate", lambda: field(4, field(2, b"") * (MESSAGE // 2))),
    "long texts to tokens": tokenize,
    "long tokens to text": detokenize,
    "5M positions": positions(2),
    "500 loops of 5M positions": positions(500),
    "500 loops of short sessions": short_sessions,
    "64 sessions with a stream each": session_streams(one_for_all=False),
    "64 streams on one session": session_streams(one_for_all=True),
    "64 lists": lists,
    "deadlines of 1 ms": short_deadlines,
    "sessions for a day": idle_sessions,
    "2,000 chats": open_chats,
    "forks by 64": forks,
    "64 slow readers": slow_readers(64),
    "1,000 slow readers": slow_readers(1000),
    **HTTP_ATTACKS,
}


# --- victim, newcomers and health checks ---

def attack_process(name, address, folder, results):
    load(folder)
    os.nice(19)  # the server is measured, and thousands of client threads share its machine
    counts, lock = collections.Counter(), threading.Lock()

    def count(what):
        with lock:
            counts[what] += 1
    threading.Thread(target=ATTACKS[name], args=(address, count), daemon=True).start()
    results["began"] = True
    while True:
        time.sleep(0.5)
        with lock:
            results["calls"] = ", ".join(f"{what} {n}" for what, n in counts.most_common(3))


def victim_process(address, folder, tokens):
    load(folder)
    while True:
        try:
            for _ in Caller(address).generate()[1]():
                tokens.value += 1
        except grpc.RpcError as error:
            print(f"  victim: {error.code().name} {error.details()}", flush=True)
            time.sleep(0.05)


def load(folder):
    global pb, rpc
    pb, rpc = load_stubs(folder)


def newcomer(address, timeout=20):
    """Seconds to the newcomer's first token; infinite if it got none."""
    caller, begin = Caller(address), time.monotonic()
    try:
        stream = caller.generate(tokens=range(100, 120), max_tokens=1, timeout=timeout)[1]()
        for event in stream:
            if event.HasField("chunk"):
                return time.monotonic() - begin
    except grpc.RpcError:
        pass
    finally:
        caller.channel.close()
    return float("inf")


def http_newcomer(address, timeout=20):
    """Like newcomer(), over HTTP."""
    begin = time.monotonic()
    connection = http.client.HTTPConnection(address, timeout=timeout, source_address=ANOTHER_ADDRESS)
    try:
        body = {"prompt": list(range(100, 120)), "max_tokens": 1, "stream": True, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status == 200 and response.readline().startswith(b"data: {"):
            return time.monotonic() - begin
    except (OSError, http.client.HTTPException):
        pass
    finally:
        connection.close()
    return float("inf")


def http_health(address):
    begin = time.monotonic()
    connection = http.client.HTTPConnection(address, timeout=10, source_address=ANOTHER_ADDRESS)
    try:
        connection.request("GET", "/health")
        return time.monotonic() - begin if connection.getresponse().status == 200 else float("inf")
    except (OSError, http.client.HTTPException):
        return float("inf")
    finally:
        connection.close()


def health(address):
    channel, begin = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]), time.monotonic()
    try:
        channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10)
        return time.monotonic() - begin
    except grpc.RpcError:
        return float("inf")
    finally:
        channel.close()


def with_template(model, folder):
    """The model's files with a chat template that knows tools, which attacks through chats need."""
    served = os.path.join(folder, os.path.basename(os.path.abspath(model)))
    os.mkdir(served)
    for name in os.listdir(model):
        os.symlink(os.path.join(os.path.abspath(model), name), os.path.join(served, name))
    if not {"chat_template.jinja", "tokenizer_config.json"} & set(os.listdir(served)):
        os.symlink(os.path.join(ROOT, "models", "scripted-chat", "chat_template.jinja"),
                   os.path.join(served, "chat_template.jinja"))
    return served


class Bench:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.bars = BRIEF if args.brief else Bars()
        binary = os.path.join(args.build, "bin", "ovq-server")
        self.server = ServerProcess(binary, with_template(args.model, folder), "--log-requests", "none", "--http-listen",
                                    "127.0.0.1:0", env={"OVQ_MAX_ISA": args.isa} if args.isa else None)
        self.http = f"127.0.0.1:{http_port(self.server)}"
        self.manager = multiprocessing.Manager()
        self.tokens = multiprocessing.Value("q", 0)
        self.victim = multiprocessing.Process(target=victim_process, daemon=True,
                                              args=(self.server.address, folder, self.tokens))
        self.victim.start()
        while self.tokens.value < 100:
            time.sleep(0.05)

    def watch(self, seconds, over_http):
        """(the victim's tokens a second, newcomers' seconds, health's, resident bytes but for states)"""
        begin, first = time.monotonic(), self.tokens.value
        came, checks, resident = [], [], []
        while time.monotonic() - begin < seconds:
            came.append(http_newcomer(self.http) if over_http else newcomer(self.server.address))
            checks.append(http_health(self.http) if over_http else health(self.server.address))
            resident.append(self.server.resident_bytes() - self.states())
            time.sleep(0.1)
        return (self.tokens.value - first) / (time.monotonic() - begin), came, checks, max(resident)

    def states(self):
        """Bytes of sessions' states, tokens and copies, which are planned for."""
        return sum(float(line.rsplit(" ", 1)[1]) for line in self.server.metrics().splitlines()
                   if line.startswith("ovq_session_history_bytes{")
                   or (line.startswith("ovq_session_state_bytes{") and 'kind="committed"' in line))

    def run(self, name):
        over_http = name in HTTP_ATTACKS
        address = self.http if over_http else self.server.address
        alone, came_alone, _, before = self.watch(self.args.seconds / 2, over_http)
        results = self.manager.dict(calls="", began=False)
        attacker = multiprocessing.Process(target=attack_process, daemon=True,
                                           args=(name, address, self.folder, results))
        attacker.start()
        while not results["began"]:  # spawned as a new program, with stubs of its own
            time.sleep(0.05)
        time.sleep(0.5 if self.args.brief else 1)
        speed, came, checks, resident = self.watch(self.args.seconds, over_http)
        calls = results["calls"]
        attacker.kill()
        attacker.join()
        time.sleep(0.5 if self.args.brief else 2)
        _, came_after, checks_after, _ = self.watch(0.5 if self.args.brief else 1, over_http)
        lives = self.server.process.poll() is None
        most = self.bars.slower * statistics.median(came_alone) + self.bars.more_seconds
        share = speed / alone
        ok = (lives and share >= self.bars.share and max(came + came_after) <= most
              and max(checks + checks_after) <= self.bars.health_seconds
              and resident - before <= self.bars.resident)
        print(f"| {name} | {share:.2f} | {max(came):.2f} s | {max(came_after):.2f} s | {max(checks):.2f} s "
              f"| {(resident - before) / (1 << 20):+.0f} MiB | {calls} | {'ok' if ok else 'MISSED'} |", flush=True)
        return ok

    def end(self):
        self.victim.kill()
        self.manager.shutdown()
        self.server.terminate()
        begin = time.monotonic()
        status = self.server.wait(60)
        print(f"SIGTERM: status {status} after {time.monotonic() - begin:.2f} s")
        return status == 0


def report(bench, names):
    """Runs the attacks and ends the server; the exit status."""
    print("| attack | victim's share | newcomer during | after | health | memory | calls | |\n"
          "|---|---:|---:|---:|---:|---:|---|---|", flush=True)
    missed = [name for name in names if not (bench.run(name) or (bench.args.brief and bench.run(name)))]
    ended = bench.end()
    print(f"{len(missed)} missed: {', '.join(missed)}" if missed else "all bars are met")
    return 0 if ended and not missed else 1


def share_of_time(text):
    share = float(text)
    if not 0.05 <= share <= 1:
        raise argparse.ArgumentTypeError(f"expected 0.05 to 1, got {text}")
    return share


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attack", action="append", choices=list(ATTACKS), metavar="NAME")
    parser.add_argument("--list", action="store_true", help="names of the attacks")
    parser.add_argument("--brief", action="store_true", help="what ctest runs")
    parser.add_argument("--seconds", type=float, help="of each attack (4, with --brief 1 or 1.5)")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "cpu"))
    parser.add_argument("--model", default=os.path.join(ROOT, "models", "python-bytes"))
    parser.add_argument("--slow", type=share_of_time, metavar="SHARE", help="the server has AVX2 and SHARE of each processor")
    parser.add_argument("--isa", help="of the server at most, as OVQ_MAX_ISA names it; with --slow avx2")
    args = parser.parse_args()
    if args.slow:
        args.isa = args.isa or "avx2"
    args.seconds = args.seconds or (4 if not args.brief else 1 if args.isa else 1.5)
    names = args.attack or (ATTACKS if not args.brief else CAPPED_ATTACKS if args.isa else BRIEF_ATTACKS)
    if args.list:
        print("\n".join(ATTACKS))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        load(folder)
        bench = Bench(args, folder)
        try:
            quota = CpuQuota(args.slow, bench.server.process.pid) if args.slow else contextlib.nullcontext()
        except QuotaError as error:
            bench.end()
            print(f"--slow: {error}", file=sys.stderr)
            return 3
        with quota:
            return report(bench, names)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")  # gRPC's threads do not outlive a fork
    sys.exit(main())
