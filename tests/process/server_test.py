"""The real ovq-server process on a tiny random model.

One file, as its classes share a model folder and how a server is started and ended.

usage: server_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import queue
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

try:
    import grpc
except ImportError as error:
    print(f"SKIPPED: {error}; install python3-grpcio")
    sys.exit(0)
for tool in ("protoc", "grpc_python_plugin"):
    if shutil.which(tool) is None:
        print(f"SKIPPED: no {tool}; install protobuf-compiler and protobuf-compiler-grpc")
        sys.exit(0)

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "clients", "python"))

from ovq_client import session_file
from server_process import ROOT, ServerProcess, load_stubs, run_to_end, wait_for
from tiny_model import write_tiny_model

BINARY = None
FOLDER = None
pb = None
rpc = None


def setUpModule():
    global FOLDER, pb, rpc
    FOLDER = tempfile.mkdtemp(prefix="ovq_process_test_")
    write_tiny_model(model_folder())
    stubs = os.path.join(FOLDER, "stubs")
    os.mkdir(stubs)
    pb, rpc = load_stubs(stubs)


def tearDownModule():
    shutil.rmtree(FOLDER)


def model_folder():
    return os.path.join(FOLDER, "tiny")


def connect(server):
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    return grpc.insecure_channel(server.address, options=unlimited)


def request(text, max_tokens, seed=1, **fields):
    return pb.GenerateRequest(
        prompt=pb.Prompt(text=text), sampling=pb.SamplingParams(seed=seed),
        stop=pb.StopConditions(max_tokens=max_tokens), output=pb.OutputOptions(logprobs=True),
        **fields)


def collect(stub, message):
    tokens, logprobs, finished = [], [], None
    for response in stub.Generate(message, timeout=120):
        tokens += response.chunk.token_ids
        logprobs += response.chunk.logprobs
        if response.HasField("finished"):
            finished = response.finished
    return tokens, logprobs, finished


class Serving(unittest.TestCase):
    """Tests that share one server."""

    @classmethod
    def setUpClass(cls):
        cls.server = ServerProcess(BINARY, model_folder(), "--state-memory", "256M",
                                   "--max-prompt-tokens", "300000")
        cls.channel = connect(cls.server)
        cls.inference = rpc.InferenceServiceStub(cls.channel)
        cls.sessions = rpc.SessionServiceStub(cls.channel)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.server.kill()

    def test_generate(self):
        tokens, logprobs, finished = collect(self.inference, request("hello", 30))
        self.assertEqual(len(tokens), 30)
        self.assertEqual(len(logprobs), 30)
        self.assertEqual(finished.reason, pb.FINISH_REASON_LENGTH)

    def test_answers_do_not_depend_on_company(self):
        alone = collect(self.inference, request("the same question", 60))[:2]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            others = [pool.submit(collect, self.inference, request("x" * (37 * i + 5), 60, seed=i))
                      for i in range(7)]
            among = collect(self.inference, request("the same question", 60))[:2]
            for other in others:
                self.assertEqual(len(other.result()[0]), 60)
        self.assertEqual(alone, among)

    def test_64_streams_at_once(self):
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            results = list(pool.map(lambda i: collect(self.inference, request(f"stream {i}", 40)),
                                    range(64)))
        for i, (tokens, _, _) in enumerate(results):
            self.assertEqual(len(tokens), 40, f"stream {i}")

    def test_score_of_65536_tokens_in_one_call(self):
        ids = [(i * 7919) % 256 for i in range(65536)]
        response = self.inference.Score(
            pb.ScoreRequest(prompt=pb.Prompt(token_ids=pb.TokenIds(ids=ids))), timeout=300)
        self.assertEqual(len(response.logprobs), 65535)
        self.assertTrue(all(x <= 0 for x in response.logprobs))

    def test_a_turn_of_200000_tokens(self):
        part = "x" * 20000

        def messages():
            yield pb.ChatRequest(open=pb.ChatOpen())
            for _ in range(9):
                yield pb.ChatRequest(turn=pb.ChatTurn(prompt=pb.Prompt(text=part), more=True))
            yield pb.ChatRequest(turn=pb.ChatTurn(prompt=pb.Prompt(text=part),
                                                  stop=pb.StopConditions(max_tokens=10)))

        events = list(self.inference.Chat(messages(), timeout=300))
        absorbed = [e.absorbed.position for e in events if e.HasField("absorbed")]
        self.assertEqual(absorbed, [20000 * (i + 1) for i in range(9)])
        finished = [e.finished for e in events if e.HasField("finished")]
        self.assertEqual(len(finished), 1)
        self.assertEqual(finished[0].usage.position, 200010)

    def test_memory_does_not_grow_with_the_conversation(self):
        # Keeping tokens would take 4 bytes each, and copies of earlier states up to their limit.
        session = self.sessions.CreateSession(pb.CreateSessionRequest(keep_tokens=False))

        def absorb():
            collect(self.inference, request("y" * 10000, 0, session_id=session.session_id))

        absorb()
        absorb()
        before = self.server.resident_bytes()
        for _ in range(18):
            absorb()
        growth = self.server.resident_bytes() - before
        info = self.sessions.GetSession(pb.GetSessionRequest(session_id=session.session_id))
        self.assertEqual(info.position, 200000)
        self.assertLessEqual(info.state_bytes, info.state_bytes_cap)
        self.assertLess(growth, 1 << 20)

    def test_an_answer_taken_back_comes_again(self):
        session_id = self.sessions.CreateSession(pb.CreateSessionRequest()).session_id

        def say(text, n):
            return collect(self.inference, request(text, n, session_id=session_id))[:2]

        def rewind(position, **fields):
            return self.sessions.RewindSession(pb.RewindSessionRequest(
                session_id=session_id, position=position, **fields))

        say("x" * 3000, 100)
        first = say("and then?", 50)
        replay = rewind(3100, dry_run=True).replay_tokens
        self.assertLess(replay, 64)
        back = rewind(3100)
        self.assertEqual((back.session.position, back.replay_tokens), (3100, replay))
        self.assertEqual(say("and then?", 50), first)
        rewind(1234)  # within the prompt: copies of states are far away, tokens are not
        say("x" * 1766, 100)
        self.assertEqual(say("and then?", 50), first)
        metrics = self.server.metrics()
        self.assertRegex(metrics, r'ovq_session_events_total{.*event="rewind".*} 2\n')
        self.assertRegex(metrics, r'ovq_session_history_bytes{.*kind="checkpoints".*} [1-9]')
        self.sessions.DeleteSession(pb.DeleteSessionRequest(session_id=session_id))

    def test_the_gateways_picker_finds_its_metrics(self):
        with open(os.path.join(ROOT, "deploy", "kubernetes", "gateway", "inference.yaml")) as file:
            names = re.findall(r"^ *\w+Spec: (\w+)$", file.read(), re.MULTILINE)
        self.assertEqual(len(names), 3)
        metrics = self.server.metrics()
        for name in names:
            self.assertRegex(metrics, rf"(?m)^# TYPE {name} gauge\n{name}{{.*}} [0-9.e+-]+$")

    def test_a_session_moves_to_another_server(self):
        made = self.sessions.CreateSession(pb.CreateSessionRequest(
            prompt=pb.Prompt(text="z" * 2000)))
        collect(self.inference, request("and then?", 70, session_id=made.session_id))
        parts = list(self.sessions.ExportSession(
            pb.ExportSessionRequest(session_id=made.session_id)))
        position = self.sessions.GetSession(
            pb.GetSessionRequest(session_id=made.session_id)).position
        expected = collect(self.inference, request("go on", 40, session_id=made.session_id))[:2]
        for how in ("replay", "trust"):
            with ServerProcess(BINARY, model_folder(), "--imports", how) as other:
                with connect(other) as channel:
                    sessions = rpc.SessionServiceStub(channel)
                    moved = sessions.ImportSession(iter(parts))
                    self.assertEqual(moved.position, position)
                    again = collect(rpc.InferenceServiceStub(channel),
                                    request("go on", 40, session_id=moved.session_id))[:2]
                    self.assertEqual(again, expected, how)
                    with self.assertRaises(grpc.RpcError) as refused:
                        sessions.ImportSession(iter(parts[:-1] + [pb.SessionBytes(
                            data=parts[-1].data[:-1])]))
                    self.assertEqual(refused.exception.code(), grpc.StatusCode.DATA_LOSS)
                    self.assertEqual(len(sessions.ListSessions(pb.ListSessionsRequest()).sessions), 1)

    def test_a_file_and_deltas_move_to_another_server(self):
        made = self.sessions.CreateSession(pb.CreateSessionRequest(
            prompt=pb.Prompt(text="z" * 2000)))

        def export(since=None):
            request = pb.ExportSessionRequest(session_id=made.session_id)
            if since is not None:
                request.since.length, request.since.digest = since
            parts = list(self.sessions.ExportSession(request))
            file = session_file.parse(b"".join(part.data for part in parts))
            self.assertEqual((parts[0].base.length, parts[0].base.digest), file.base)
            return file

        def import_(sessions, file):
            data = session_file.encode(file)
            return sessions.ImportSession(iter(
                pb.SessionBytes(data=data[at:at + 99999]) for at in range(0, len(data), 99999)))

        joined = export()
        for text in ("and then?", "and what then?"):
            collect(self.inference, request(text, 70, session_id=made.session_id))
            delta = export(joined.base)
            joined = session_file.join(joined, delta)
        self.assertEqual(joined.position, 1999)
        stayed = export()
        expected = collect(self.inference, request("go on", 40, session_id=made.session_id))[:2]
        for how in ("replay", "trust"):
            with ServerProcess(BINARY, model_folder(), "--imports", how) as other:
                with connect(other) as channel:
                    sessions = rpc.SessionServiceStub(channel)
                    moved = import_(sessions, joined)
                    moved_file = session_file.parse(b"".join(
                        part.data for part in sessions.ExportSession(
                            pb.ExportSessionRequest(session_id=moved.session_id))))
                    self.assertEqual(moved_file.state, stayed.state, how)
                    self.assertEqual(moved_file.tokens, stayed.tokens, how)
                    again = collect(rpc.InferenceServiceStub(channel),
                                    request("go on", 40, session_id=moved.session_id))[:2]
                    self.assertEqual(again, expected, how)

    def test_metrics_over_http(self):
        collect(self.inference, request("count me", 5))
        text = self.server.metrics()
        for name in ("ovq_ready", "ovq_generated_tokens_total", "ovq_session_state_bytes",
                     "ovq_equivalent_kv_cache_bytes", "process_resident_memory_bytes"):
            self.assertIn(f"\n# TYPE {name} ", text)
        self.assertIn('ovq_ready{model="tiny"} 1', text)

    def test_a_bad_request_harms_nobody(self):
        for bad in (request("", 5), pb.GenerateRequest(), request("x" * 400000, 5)):
            with self.assertRaises(grpc.RpcError) as caught:
                collect(self.inference, bad)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertEqual(len(collect(self.inference, request("fine", 5))[0]), 5)


class UnreadChat:
    """A chat whose client reads nothing, so that the server's writes wait, and with them its end."""

    def __init__(self, channel, turn):
        self.requests, self.sent = queue.SimpleQueue(), threading.Semaphore(0)
        self.call = channel.stream_stream("/ovq.v1.InferenceService/Chat", request_serializer=bytes)(self.sending())
        self.send(pb.ChatRequest(open=pb.ChatOpen()).SerializeToString())
        self.send(pb.ChatRequest(turn=pb.ChatTurn(
            prompt=turn.prompt, sampling=turn.sampling, stop=turn.stop, output=turn.output)).SerializeToString())

    def sending(self):
        for message in iter(self.requests.get, None):
            yield message
            self.sent.release()  # gRPC asks for the next one

    def send(self, message):
        self.requests.put(message)
        assert self.sent.acquire(timeout=60)

    def close(self):
        self.requests.put(None)
        self.call.cancel()


class Chats(unittest.TestCase):
    def check_that_a_message_is_freed(self, turn, await_turn, *options):
        """Sends a message that is refused behind the turn of chats that nobody reads."""
        n, size = 6, 15 << 20
        with ServerProcess(BINARY, model_folder(), "--state-memory", "64M") as server, contextlib.ExitStack() as stack:
            # Without windows that grow with what comes.
            channel = stack.enter_context(grpc.insecure_channel(server.address, [
                ("grpc.http2.bdp_probe", 0), ("grpc.max_send_message_length", -1), *options]))
            chats = [stack.enter_context(contextlib.closing(UnreadChat(channel, turn))) for _ in range(n)]
            await_turn(server)
            before = server.resident_bytes()
            for chat in chats:
                chat.send(b"\xff" * size)
            time.sleep(0.5)
            self.assertLess(server.resident_bytes() - before, n * size // 2)

    def test_a_refused_message_is_freed_though_nobody_reads_the_answer(self):
        turn = request("never read", 4000000)
        turn.stop.ignore_eos = True
        turn.output.top_logprobs = 200

        def steps(server):
            return sum(map(float, re.findall(r"ovq_step_duration_seconds_count\S* (\S+)\n", server.metrics())))

        def all_wait(server):
            before = steps(server)
            time.sleep(0.5)
            return before > 100 and steps(server) == before
        self.check_that_a_message_is_freed(
            turn, lambda server: wait_for(lambda: all_wait(server), "no answer is taken", 60))

    def test_a_message_behind_a_refused_turn_is_freed_though_nobody_reads_the_error(self):
        turn = request("refused", 1)
        turn.sampling.temperature = -1
        # The window has no room for the first answer, which the error waits for.
        self.check_that_a_message_is_freed(turn, lambda _: time.sleep(0.5), ("grpc.http2.lookahead_bytes", 16))


class Memories(unittest.TestCase):
    def test_sessions_choose_theirs(self):
        with ServerProcess(BINARY, model_folder(), "--memory", "model,closest-pair,keydiff",
                           "--state-memory", "64M") as server, connect(server) as channel:
            inference = rpc.InferenceServiceStub(channel)
            sessions = rpc.SessionServiceStub(channel)
            info = inference.GetModelInfo(pb.GetModelInfoRequest(memory="closest-pair"))
            self.assertEqual(list(info.memories), ["model", "closest-pair", "keydiff"])
            self.assertIn("closest_pair_attention", info.layer_types)
            answers = {}
            for memory in ("", "closest-pair", "keydiff"):
                session = sessions.CreateSession(pb.CreateSessionRequest(
                    memory=memory, max_centroids=64, prompt=pb.Prompt(text="many words, " * 40)))
                self.assertEqual(session.memory, memory or "model")
                answers[memory] = collect(inference, request("go on", 20,
                                                             session_id=session.session_id))[:2]
                self.assertEqual(len(answers[memory][0]), 20)
            self.assertEqual(len({str(text) for _, text in answers.values()}), 3)
        code, _, err = run_to_end(BINARY, "--model", model_folder(), "--memory", "paper,window")
        self.assertEqual(code, 2)
        self.assertIn("--memory: expected model, paper, closest-pair, closest-pair-all, keydiff, "
                      "keydiff-all or exact, or several with commas between", err)


class Stopping(unittest.TestCase):
    def start_stream(self, server, channel, max_tokens):
        """Starts a stream and waits for its first token; returns it and a list that receives its
        tokens or its error."""
        stream = rpc.InferenceServiceStub(channel).Generate(request("hi", max_tokens))
        first = threading.Event()
        tokens = []

        def read():
            try:
                for response in stream:
                    tokens.extend(response.chunk.token_ids)
                    first.set()
            except grpc.RpcError as error:
                tokens.append(error.code())

        thread = threading.Thread(target=read)
        thread.start()
        self.assertTrue(first.wait(60))
        return thread, tokens

    def test_sigterm_lets_running_streams_finish(self):
        with ServerProcess(BINARY, model_folder(), "--state-memory", "64M") as server:
            with connect(server) as channel:
                thread, tokens = self.start_stream(server, channel, 3000)
                server.terminate()
                thread.join(60)
                self.assertEqual(len(tokens), 3000)
                self.assertEqual(server.wait(), 0)

    def test_a_chat_that_was_asked_for_no_more_ends_well_in_a_drain(self):
        with ServerProcess(BINARY, model_folder(), "--state-memory", "64M") as server:
            with connect(server) as channel:
                turn = pb.ChatTurn(prompt=pb.Prompt(text="x"),
                                   stop=pb.StopConditions(max_tokens=3000, ignore_eos=True))
                stream = rpc.InferenceServiceStub(channel).Chat(iter(
                    [pb.ChatRequest(open=pb.ChatOpen()), pb.ChatRequest(turn=turn)]), timeout=60)
                responses = [next(stream) for _ in range(3)]  # opened, started, a chunk
                server.terminate()
                responses += stream  # ends without an error
                self.assertTrue(responses[-1].HasField("finished"))
                self.assertEqual(stream.code(), grpc.StatusCode.OK)
                self.assertEqual(server.wait(), 0)

    def test_other_signals_change_nothing(self):
        with ServerProcess(BINARY, model_folder(), "--state-memory", "64M") as server:
            with connect(server) as channel:
                thread, tokens = self.start_stream(server, channel, 3000)
                for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2) * 3:
                    server.process.send_signal(number)
                server.terminate()
                thread.join(60)
                self.assertEqual(len(tokens), 3000)
                self.assertEqual(server.wait(), 0)

    def test_other_signals_change_nothing_before_the_program_begins(self):
        """These signals are handled from before the initializers of its libraries on."""
        if "libasan" in subprocess.run(["ldd", BINARY], capture_output=True, text=True).stdout:
            self.skipTest("a sanitizer wants to be the first of the libraries")
        numbers = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
        env = {"LD_PRELOAD": os.path.join(os.path.dirname(BINARY), "libovq_fail.so"),
               "OVQ_FAULTS_SIGNALS": ",".join(str(int(number)) for number in numbers)}
        with ServerProcess(BINARY, model_folder(), "--state-memory", "64M", env=env) as server:
            server.terminate()
            self.assertEqual(server.wait(), 0)

    def test_drain_ends_in_time_and_refuses_new_work(self):
        with ServerProcess(BINARY, model_folder(), "--state-memory", "64M", "--drain-timeout",
                           "2s") as server:
            with connect(server) as channel:
                thread, tokens = self.start_stream(server, channel, 4000000)
                server.terminate()

                def refuses():
                    try:
                        collect(rpc.InferenceServiceStub(channel), request("late", 5))
                        return False  # it came before the drain
                    except grpc.RpcError as error:
                        self.assertEqual(error.code(), grpc.StatusCode.UNAVAILABLE)
                        return True
                wait_for(refuses, "new work is refused")
                self.assertEqual(server.wait(20), 0)
                thread.join(60)
                self.assertEqual(tokens[-1], grpc.StatusCode.UNAVAILABLE)

    def test_a_drain_that_waited_for_a_client_that_reads_nothing_says_so(self):
        with ServerProcess(BINARY, model_folder(), "--state-memory", "64M", "--drain-timeout", "1s") as server:
            # The window has no room for the first answer.
            with grpc.insecure_channel(server.address, [("grpc.http2.bdp_probe", 0),
                                                        ("grpc.http2.lookahead_bytes", 16)]) as channel:
                with contextlib.closing(UnreadChat(channel, request("unread", 5))):
                    wait_for(lambda: re.search(r"ovq_generated_tokens_total\S* 5\n", server.metrics()), "an answer")
                    server.terminate()
                    self.assertEqual(server.wait(20), 0)
            self.assertIn("drain: time is up", server.stderr())
            self.assertRegex(server.stderr(), r"call ended method=Chat code=UNAVAILABLE .* peer=ipv4:127")

    def test_second_signal_ends_at_once(self):
        with ServerProcess(BINARY, model_folder(), "--state-memory", "64M") as server:
            with connect(server) as channel:
                thread, _ = self.start_stream(server, channel, 4000000)
                server.terminate()
                # Two signals that come together are one.
                wait_for(lambda: "a second one ends at once" in server.stderr(), "the first signal is seen")
                server.terminate()
                self.assertEqual(server.wait(20), 128 + signal.SIGTERM)
                thread.join(60)


class Answers(unittest.TestCase):
    def test_output_that_cannot_be_written_is_an_error(self):
        plan = ["--plan", "--model", model_folder(), "--state-memory", "1M"]
        for args in (["--help"], ["--version"], plan, ["--hash-token"]):
            with self.subTest(args[0]), open("/dev/full", "w") as full:
                run = subprocess.run([BINARY, *args], input="x" * 40, stdout=full, stderr=subprocess.PIPE, text=True,
                                     timeout=60)
                self.assertEqual(run.returncode, 1, run.stderr)
                self.assertRegex(run.stderr, "No space left on device|output could not be written")


class Planning(unittest.TestCase):
    def test_as_many_sessions_fit_as_planned(self):
        code, out, err = run_to_end(BINARY, "--plan", "--model", model_folder(), "--state-memory",
                                    "1M", "--plan-centroids", "64,256", "--plan-tokens", "100")
        self.assertEqual((code, err), (0, ""))
        table = [line.split() for line in out.splitlines()[1:]]
        planned = {int(cap): int(sessions) for cap, tokens, _, _, sessions, *_ in table[1:]
                   if tokens == "any"}
        self.assertEqual(sorted(planned), [64, 256])
        self.assertGreater(planned[64], planned[256])
        for cap, expected in planned.items():
            with ServerProcess(BINARY, model_folder(), "--state-memory", "1M") as server:
                stub = rpc.SessionServiceStub(connect(server))
                for _ in range(expected):
                    stub.CreateSession(pb.CreateSessionRequest(max_centroids=cap), timeout=60)
                with self.assertRaises(grpc.RpcError) as caught:
                    stub.CreateSession(pb.CreateSessionRequest(max_centroids=cap), timeout=60)
                self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)

    def test_a_start_says_that_no_conversation_fits(self):
        tokens = "no conversation fits in --state-memory, as each reserves [0-9]+ bytes for the 5000 tokens of --max-context"
        centroids = "no conversation fits in --state-memory, as each reserves [0-9]+ bytes for 64 max_centroids"
        for flags, said in ((("--memory", "exact", "--max-context", "5000", "--state-memory", "64K"), tokens),
                            (("--state-memory", "4K"), centroids), (("--state-memory", "16M"), None)):
            with self.subTest(flags), ServerProcess(BINARY, model_folder(), *flags) as server:
                stub = rpc.SessionServiceStub(connect(server))
                if said is None:
                    stub.CreateSession(pb.CreateSessionRequest(), timeout=60)
                    self.assertNotIn("warning", server.stderr())
                    continue
                self.assertRegex(server.stderr(), "warning: memory [a-z]+: " + said)
                with self.assertRaises(grpc.RpcError) as caught:
                    stub.CreateSession(pb.CreateSessionRequest(), timeout=60)
                self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)

    def test_check_config(self):
        code, out, err = run_to_end(BINARY, "--check-config", "--model", model_folder(),
                                    env={"OVQ_MAX_QUEUE": "9"})
        self.assertEqual((code, err), (0, ""))
        self.assertIn("\n# OVQ_MAX_QUEUE\nmax-queue = 9\n", out)
        self.assertIn("\n# default: max-sessions = 1024\n", out)
        # The printed text is a configuration with the same values.
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
            file.write(out)
            file.flush()
            code, again, err = run_to_end(BINARY, "--check-config", "--config", file.name)
        self.assertEqual((code, err), (0, ""))
        self.assertEqual([line for line in again.splitlines() if line[0] != "#"],
                         [line for line in out.splitlines() if line[0] != "#"])
        code, out, err = run_to_end(BINARY, "--check-config", "--model", "/nonexistent/model")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("/nonexistent/model", err)
        code, out, err = run_to_end(BINARY, "--check-config", "--model", model_folder(),
                                    "--tenants", "/nonexistent/tenants.json")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("--tenants: /nonexistent/tenants.json", err)

    def test_worked_example_of_the_documentation(self):
        with open(os.path.join(ROOT, "docs", "operations.md")) as file:
            section = file.read().split("\n## Sizing\n")[1].split("\n## ")[0]
        blocks = ["".join(line[4:] for line in block.splitlines(keepends=True))
                  for block in re.findall(r"(?:^    .*\n)+", section, re.MULTILINE)]
        arguments = shlex.split(blocks[0].replace("\\\n", " "))
        self.assertEqual(arguments.pop(0), "ovq-server")
        where = arguments.index("--model") + 1
        arguments[where] = os.path.join(ROOT, arguments[where])
        self.assertEqual(run_to_end(BINARY, *arguments), (0, blocks[1], ""))


class Starting(unittest.TestCase):
    def fails(self, code, culprit, *arguments, env=None):
        actual, out, err = run_to_end(BINARY, *arguments, env=env)
        self.assertEqual(actual, code, err)
        self.assertEqual(out, "")
        self.assertIn(culprit, err)
        self.assertEqual(err.count("\n"), 1, err)

    def test_what_is_read_beside_the_weights_is_read_before_them(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(model_folder(), folder, dirs_exist_ok=True)
            os.truncate(os.path.join(folder, "model.safetensors"), 100)
            self.fails(1, "model.safetensors", "--model", folder)
            for flags in (("--chat-template", "/nonexistent/template"),
                          ("--session-store", "redis://127.0.0.1:1", "--session-store-password-file", "/nonexistent/it"),
                          ("--session-store", "rediss://127.0.0.1:1", "--session-store-ca", "/nonexistent/ca.pem"),
                          ("--session-store", "s3://bucket", "--session-store-credentials-file", "/nonexistent/key")):
                self.fails(1, flags[-1], "--model", folder, *flags)
            config = os.path.join(folder, "config.json")
            with open(config) as file:
                fields = json.load(file)
            del fields["tokenizer"]
            with open(config, "w") as file:
                json.dump(fields, file)
            with open(os.path.join(folder, "tokenizer.json"), "w") as file:
                file.write("{")
            self.fails(1, "tokenizer.json", "--model", folder)

    def test_bad_options(self):
        self.fails(2, "--bogus", "--model", model_folder(), "--bogus")
        self.fails(2, "--max-queue", "--model", model_folder(), "--max-queue", "many")
        self.fails(2, "OVQ_THREADS", "--model", model_folder(), env={"OVQ_THREADS": "x"})
        self.fails(2, "--model")

    def test_missing_and_broken_models(self):
        self.fails(1, "/nonexistent", "--model", "/nonexistent/model")
        broken = os.path.join(FOLDER, "broken")
        write_tiny_model(broken)
        weights = os.path.join(broken, "model.safetensors")
        os.truncate(weights, os.path.getsize(weights) // 2)
        self.fails(1, "model.safetensors", "--model", broken)
        with open(os.path.join(broken, "config.json"), "w") as file:
            file.write("{")
        self.fails(1, "config.json", "--model", broken)

    def test_a_folder_whose_name_is_not_utf8(self):
        folder = os.path.join(FOLDER, os.fsdecode(b"caf\xe9"))
        os.symlink(model_folder(), folder)
        with ServerProcess(BINARY, folder) as server, connect(server) as channel:
            info = rpc.InferenceServiceStub(channel).GetModelInfo(pb.GetModelInfoRequest())
            self.assertEqual(info.name, "caf\ufffd")
            self.assertIn('ovq_ready{model="caf\ufffd"} 1', server.metrics())

    def test_devices(self):
        self.fails(2, "--device", "--model", model_folder(), "--device", "tpu")

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "a GPU is present")
    def test_no_gpu(self):
        code, out, err = run_to_end(BINARY, "--model", model_folder(), "--device", "cuda")
        self.assertEqual((code, out), (1, ""), err)
        self.assertRegex(
            err, r"device 'cuda': (this build has no CUDA kernels|expected a GPU and its driver)")
        self.assertEqual(err.count("\n"), 1, err)

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            for flag in ("--listen", "--metrics-address"):
                flags = {"--listen": "127.0.0.1:0", "--metrics-address": "", flag: address}
                arguments = [x for pair in flags.items() for x in pair]
                code, out, err = run_to_end(BINARY, "--model", model_folder(), "--state-memory",
                                            "64M", *arguments)
                self.assertEqual((code, out), (1, ""), err)
                self.assertIn(f"{flag}: cannot listen on {address}", err)

    def test_help_and_version(self):
        code, out, _ = run_to_end(BINARY, "--help")
        self.assertEqual(code, 0)
        self.assertIn("OVQ_STATE_MEMORY", out)
        code, out, _ = run_to_end(BINARY, "--version")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"^ovq-server \d+\.\d+\.\d+\n$")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BINARY = os.path.join(os.path.abspath(options.build), "bin", "ovq-server")
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
