"""The real ovq-server under TLS, with tokens, and among hostile clients.

usage: security_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import contextlib
import gzip
import hashlib
import os
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

try:
    import grpc
except ImportError as error:
    print(f"SKIPPED: {error}; install python3-grpcio")
    sys.exit(0)
for tool in ("protoc", "grpc_python_plugin", "openssl"):
    if shutil.which(tool) is None:
        print(f"SKIPPED: no {tool}; install what deploy/packages.txt lists")
        sys.exit(0)

from certificates import make_authority, make_certificate, write_tenants
from server_process import ROOT, ServerProcess, load_stubs, run_to_end
from tiny_model import write_tiny_model

ALICE, BOB, ROOT_TOKEN = (f"{name}-0123456789-abcdefghij" for name in ("alice", "bob", "root"))
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BINARY = CHAT = FOLDER = pb = rpc = admin_pb = admin_rpc = None


def setUpModule():
    global FOLDER, pb, rpc, admin_pb, admin_rpc
    FOLDER = tempfile.mkdtemp(prefix="ovq_security_test_")
    write_tiny_model(path("tiny"))
    os.mkdir(path("stubs"))
    pb, rpc = load_stubs(path("stubs"))
    from ovq.v1 import admin_pb2, admin_pb2_grpc
    admin_pb, admin_rpc = admin_pb2, admin_pb2_grpc
    for name in ("ca", "other_ca"):
        make_authority(FOLDER, name)
    for name in ("server", "renewed", "client"):
        make_certificate(FOLDER, name)
    make_certificate(FOLDER, "stranger", "other_ca")
    make_certificate(FOLDER, "expired", expired=True)
    write_tenants(path("tenants.json"), {"alice": ALICE, "bob": BOB, "root": ROOT_TOKEN})


def tearDownModule():
    shutil.rmtree(FOLDER)


def path(name):
    return os.path.join(FOLDER, name)


def read(name):
    with open(path(name), "rb") as file:
        return file.read()


def serve(*flags):
    return ServerProcess(BINARY, path("tiny"), "--state-memory", "256M", *flags)


def secure_flags(server="server"):
    return ("--tls-cert", path(f"{server}.pem"), "--tls-key", path(f"{server}.key"))


@contextlib.contextmanager
def connect(address, identity=None, tls=True, options=()):
    # Subchannels are shared between channels with equal arguments; each test wants its own.
    options = [("grpc.use_local_subchannel_pool", 1), *options]
    if not tls:
        channel = grpc.insecure_channel(address, options)
    else:
        key, chain = (read(f"{identity}.key"), read(f"{identity}.pem")) if identity else (None, None)
        channel = grpc.secure_channel(
            address, grpc.ssl_channel_credentials(read("ca.pem"), key, chain), options)
    try:
        yield channel
    finally:
        channel.close()


def bearer(token):
    return (("authorization", f"Bearer {token}"),)


def info(channel, token=None, timeout=10):
    return rpc.InferenceServiceStub(channel).GetModelInfo(
        pb.GetModelInfoRequest(), timeout=timeout, metadata=bearer(token) if token else None)


def metric(server, name):
    with urllib.request.urlopen(server.metrics_url(), timeout=10) as response:
        for line in response.read().decode().splitlines():
            if line.rsplit(" ", 1)[0] == name:
                return float(line.rsplit(" ", 1)[1])
    return None


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("the condition did not come")
        time.sleep(0.02)


def peer_serial(server):
    """Of the certificate that a new connection is shown."""
    pem = ssl.get_server_certificate(("127.0.0.1", server.port))
    return subprocess.run(["openssl", "x509", "-noout", "-subject"], input=pem, text=True,
                          check=True, capture_output=True).stdout.strip()


class Stream:
    """A long answer that is read all the while: others must not disturb it."""

    def __init__(self, channel, token=None):
        request = pb.GenerateRequest(
            prompt=pb.Prompt(text="on and on"), sampling=pb.SamplingParams(seed=1),
            stop=pb.StopConditions(max_tokens=10_000_000, ignore_eos=True))
        self._call = rpc.InferenceServiceStub(channel).Generate(
            request, timeout=120, metadata=bearer(token) if token else None)
        self.tokens = 0
        self.error = None
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        try:
            for response in self._call:
                self.tokens += len(response.chunk.token_ids)
        except grpc.RpcError as error:
            self.error = error

    def await_more(self):
        before = self.tokens
        wait_for(lambda: self.tokens > before or self.error is not None)
        if self.error is not None:
            raise AssertionError(f"the stream ended: {self.error}")

    def __enter__(self):
        self.await_more()
        return self

    def __exit__(self, *_):
        self._call.cancel()
        self._thread.join()


class Case(unittest.TestCase):
    def assertFails(self, code, call, *arguments):
        with self.assertRaises(grpc.RpcError) as caught:
            call(*arguments)
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        return caught.exception


class Start(Case):
    def refused(self, *flags, code=1):
        status, _, stderr = run_to_end(BINARY, "--model", path("tiny"), "--listen", "127.0.0.1:0",
                                       "--metrics-address", "", *flags)
        self.assertEqual(status, code, stderr)
        return stderr

    def test_bad_files_name_flag_and_file(self):
        with open(path("garbage.pem"), "w") as file:
            file.write("no certificate")
        with open(path("damaged.pem"), "w") as file:
            file.write("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        cert, key = path("server.pem"), path("server.key")
        for flags, message in (
                ((path("none.pem"), key), f"--tls-cert: {path('none.pem')}: no such file"),
                ((FOLDER, key), f"--tls-cert: {FOLDER}: not a regular file"),
                ((path("garbage.pem"), key), f"--tls-cert: {path('garbage.pem')}: expected PEM"),
                ((path("damaged.pem"), key), f"--tls-cert: {path('damaged.pem')}: damaged PEM"),
                ((cert, cert), f"--tls-key: {cert}: expected a PEM private key"),
                ((cert, path("client.key")), f"--tls-key: {path('client.key')}: is not the key of"),
                ((path("expired.pem"), path("expired.key")),
                 f"--tls-cert: {path('expired.pem')}: the certificate expired at")):
            with self.subTest(message):
                stderr = self.refused("--tls-cert", flags[0], "--tls-key", flags[1])
                self.assertIn(message, stderr)
        stderr = self.refused(*secure_flags(), "--tls-client-ca", path("garbage.pem"))
        self.assertIn(f"--tls-client-ca: {path('garbage.pem')}: expected PEM", stderr)
        stderr = self.refused("--tenants", path("garbage.pem"))
        self.assertIn(f"--tenants: {path('garbage.pem')}: not valid JSON", stderr)

    def test_flags_that_do_not_go_together(self):
        self.assertIn("--tls-key: expected", self.refused("--tls-cert", path("server.pem"), code=2))
        self.assertIn("--tls-client-ca: expected",
                      self.refused("--tls-client-ca", path("ca.pem"), code=2))
        self.assertIn("--admin-listen: expected a loopback",
                      self.refused("--admin-listen", "0.0.0.0:0", code=2))

    def test_hash_token(self):
        run = subprocess.run([BINARY, "--hash-token"], input=ALICE + "\n", text=True,
                             capture_output=True, timeout=20)
        self.assertEqual(run.stdout.strip(), hashlib.sha256(ALICE.encode()).hexdigest())
        run = subprocess.run([BINARY, "--hash-token"], input="short", text=True,
                             capture_output=True, timeout=20)
        self.assertEqual((run.returncode, run.stdout), (2, ""))
        self.assertNotIn("short", run.stderr)


class Tls(Case):
    def test_reload_while_a_stream_runs(self):
        for kind in ("pem", "key"):
            shutil.copy(path(f"server.{kind}"), path(f"live.{kind}"))
        with serve(*secure_flags("live")) as server, connect(server.address) as channel:
            with Stream(channel) as stream:
                self.assertIn("server", peer_serial(server))
                self.assertGreater(metric(server, "ovq_tls_certificate_expiry_timestamp_seconds"),
                                   time.time())
                reloads = 'ovq_credentials_reloads_total{result="%s",what="tls"}'
                # A broken file: the old certificate stays.
                with open(path("live.pem"), "w") as file:
                    file.write("broken")
                wait_for(lambda: metric(server, reloads % "error") == 1)
                self.assertIn("server", peer_serial(server))
                self.assertIn(f"--tls-cert: {path('live.pem')}: expected PEM", server.stderr())
                for kind in ("key", "pem"):
                    shutil.copy(path(f"renewed.{kind}"), path(f"live.{kind}"))
                wait_for(lambda: "renewed" in peer_serial(server))
                self.assertEqual(metric(server, reloads % "ok"), 1)
                stream.await_more()
            with connect(server.address) as fresh:
                self.assertEqual(info(fresh).name, "tiny")

    def test_plain_text_and_old_tls_are_refused(self):
        with serve(*secure_flags()) as server:
            with connect(server.address, tls=False) as channel:
                self.assertFails(grpc.StatusCode.UNAVAILABLE, info, channel)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
            with socket.create_connection(("127.0.0.1", server.port), 10) as raw:
                with self.assertRaises(OSError):
                    context.wrap_socket(raw)
            with connect(server.address) as channel:
                self.assertEqual(info(channel).name, "tiny")

    def test_mutual_tls(self):
        with serve(*secure_flags(), "--tls-client-ca", path("ca.pem")) as server:
            with connect(server.address, "client") as good, Stream(good) as stream:
                for identity in (None, "stranger", "expired"):
                    with self.subTest(identity), connect(server.address, identity) as channel:
                        self.assertFails(grpc.StatusCode.UNAVAILABLE, info, channel)
                stream.await_more()

    def test_admin_has_the_same_tls(self):
        with serve(*secure_flags(), "--tls-client-ca", path("ca.pem"),
                   "--admin-listen", "127.0.0.1:0") as server:
            address = server.stderr().split("admin on ")[1].split()[0]
            status = admin_pb.GetStatusRequest()
            with connect(address) as channel:
                self.assertFails(grpc.StatusCode.UNAVAILABLE,
                                 lambda: admin_rpc.AdminServiceStub(channel).GetStatus(
                                     status, timeout=10))
            with connect(address, "client") as channel:
                stub = admin_rpc.AdminServiceStub(channel)
                self.assertEqual(stub.GetStatus(status, timeout=10).model, "tiny")


class Tokens(Case):
    def test_tokens_and_their_reload_while_a_stream_runs(self):
        write_tenants(path("live.json"), {"alice": ALICE, "bob": BOB})
        with serve("--tenants", path("live.json")) as server:
            with connect(server.address, tls=False) as channel, Stream(channel, ALICE) as stream:
                for token in (None, "wrong", BOB + "x", "a b"):
                    error = self.assertFails(grpc.StatusCode.UNAUTHENTICATED, info, channel, token)
                    self.assertIn("expected 'Bearer TOKEN'", error.details())
                info(channel, BOB)
                reloads = 'ovq_credentials_reloads_total{result="%s",what="tenants"}'
                with open(path("live.json"), "w") as file:
                    file.write('{"tenants": [{"name": "alice"}]}')
                wait_for(lambda: metric(server, reloads % "error") == 1)
                self.assertIn("tenant alice: token_sha256: expected", server.stderr())
                info(channel, BOB)
                # Bob's is withdrawn, alice gets a limit that the running stream uses up.
                write_tenants(path("live.json"), {"alice": ALICE}, {"alice": {"sessions": 1}})
                wait_for(lambda: metric(server, reloads % "ok") == 1)
                self.assertFails(grpc.StatusCode.UNAUTHENTICATED, info, channel, BOB)
                sessions = rpc.SessionServiceStub(channel)
                error = self.assertFails(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    lambda: sessions.CreateSession(pb.CreateSessionRequest(), timeout=10,
                                                   metadata=bearer(ALICE)))
                self.assertIn("tenant alice: sessions: 1 more on top of 1, the limit is 1",
                              error.details())
                stream.await_more()
            self.assertNotIn(ALICE, server.stderr())

    def test_admin_drains(self):
        with serve("--tenants", path("tenants.json"), "--admin-listen", "127.0.0.1:0") as server:
            address = server.stderr().split("admin on ")[1].split()[0]
            with connect(address, tls=False) as channel:
                stub = admin_rpc.AdminServiceStub(channel)
                drain = admin_pb.DrainRequest()
                self.assertFails(grpc.StatusCode.PERMISSION_DENIED, lambda: stub.Drain(
                    drain, timeout=10, metadata=bearer(ALICE)))
                stub.Drain(drain, timeout=10, metadata=bearer(ROOT_TOKEN))
            self.assertEqual(server.wait(30), 0)

    def test_warning_without_tls(self):
        arguments = [BINARY, "--model", path("none"), "--tenants", path("tenants.json")]
        _, _, stderr = run_to_end(*arguments, "--listen", "0.0.0.0:0")
        self.assertIn("warning: --tenants without --tls-cert on 0.0.0.0:0", stderr)
        _, _, stderr = run_to_end(*arguments)
        self.assertNotIn("warning", stderr)


class Clients(Case):
    def test_tls_and_tokens(self):
        with open(path("token"), "w") as file:
            file.write(ALICE + "\n")
        with open(path("bad_token"), "w") as file:
            file.write("wrong-token\n")
        with serve(*secure_flags(), "--tls-client-ca", path("ca.pem"),
                   "--tenants", path("tenants.json")) as server:
            python = [sys.executable, "-m", "ovq_client"]
            ask = ["--prompt", "hello", "--max-tokens", "3"]
            identity = ["--tls-ca", path("ca.pem"), "--tls-cert", path("client.pem"),
                        "--tls-key", path("client.key")]
            for program, rest in (([CHAT], ask), (python, ["info"])):
                def run(*flags):
                    return subprocess.run(
                        [*program, "--server", server.address, *flags, *rest],
                        capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
                        env={**os.environ,
                             "PYTHONPATH": os.path.join(ROOT, "clients", "python")})
                with self.subTest(program):
                    good = run(*identity, "--token-file", path("token"))
                    self.assertEqual(good.returncode, 0, good.stderr)
                    bad = run(*identity, "--token-file", path("bad_token"))
                    self.assertEqual(bad.returncode, 1)
                    self.assertIn("UNAUTHENTICATED", bad.stderr)
                    self.assertNotIn("wrong-token", bad.stderr)
                    self.assertIn("UNAVAILABLE", run("--token-file", path("token")).stderr)
                    self.assertEqual(run("--tls-cert", path("client.pem")).returncode, 2)
                    missing = run("--tls-ca", path("none"))
                    self.assertNotEqual(missing.returncode, 0)
                    self.assertIn(path("none"), missing.stderr)


def closed_by_peer(connection, seconds):
    """Reads to the end of a connection; false if it does not come."""
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
        return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False


class Hostile(Case):
    """One server for all of these, and one client's stream that must go on."""

    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        cls.server = cls.stack.enter_context(
            serve("--handshake-timeout", "2s", "--max-message-bytes", "1M"))
        channel = cls.stack.enter_context(connect(cls.server.address, tls=False))
        cls.stream = cls.stack.enter_context(Stream(channel))

    @classmethod
    def tearDownClass(cls):
        cls.stack.close()

    def tearDown(self):
        self.stream.await_more()

    def dial(self, server=None):
        return socket.create_connection(("127.0.0.1", (server or self.server).port), 10)

    def test_slow_handshake_is_cut(self):
        with self.dial() as silent, self.dial() as slow:
            slow.sendall(PREFACE[:10])
            self.assertTrue(closed_by_peer(silent, 20))
            self.assertTrue(closed_by_peer(slow, 20))

    def test_half_open_tls_handshake_is_cut(self):
        with serve(*secure_flags(), "--handshake-timeout", "500ms") as server:
            with connect(server.address) as channel, Stream(channel) as stream:
                with self.dial(server) as half:
                    half.sendall(bytes([22, 3, 1, 2, 0, 1, 0]))  # a ClientHello begins
                    self.assertTrue(closed_by_peer(half, 20))
                stream.await_more()

    def test_idle_connection_is_closed(self):
        with serve("--max-connection-idle", "1s") as server, self.dial(server) as idle:
            idle.sendall(PREFACE + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # empty SETTINGS
            self.assertTrue(closed_by_peer(idle, 20))

    def test_oversized_metadata(self):
        with connect(self.server.address, tls=False) as channel:
            stub = rpc.InferenceServiceStub(channel)
            self.assertFails(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: stub.GetModelInfo(
                pb.GetModelInfoRequest(), timeout=10, metadata=(("big", "x" * 40_000),)))
            self.assertEqual(info(channel).name, "tiny")

    def raw(self, channel, method, data, **options):
        return channel.unary_unary(f"/ovq.v1.InferenceService/{method}")(data, timeout=30, **options)

    def test_invalid_utf8(self):
        with connect(self.server.address, tls=False) as channel:
            error = self.assertFails(grpc.StatusCode.INVALID_ARGUMENT, self.raw, channel,
                                     "Tokenize", b"\x0a\x02\xff\xfe")
            self.assertIn("TokenizeRequest.text", error.details())

    def test_message_that_inflates(self):
        # 200 MiB of one letter, as some 200 KB on the wire.
        data = pb.TokenizeRequest(text="a" * (200 << 20)).SerializeToString()
        before = self.server.resident_bytes()
        with connect(self.server.address, tls=False,
                     options=[("grpc.max_send_message_length", -1)]) as channel:
            info(channel)  # connected: a client that compresses does nothing else
            error = self.assertFails(
                grpc.StatusCode.UNIMPLEMENTED,
                lambda: self.raw(channel, "Tokenize", data, compression=grpc.Compression.Gzip))
            self.assertIn("gzip", error.details())
            self.assertEqual(info(channel).name, "tiny")
        self.assertLess(peak_bytes(self.server) - before, 100 << 20)

    def test_many_idle_connections(self):
        """10,000 of them, or as many as both processes may have files open."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        count = min(10_000, hard - 500)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 400), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        print(f"{count} idle connections", file=sys.stderr)
        settings = PREFACE + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(serve())
            stream = stack.enter_context(
                Stream(stack.enter_context(connect(server.address, tls=False))))
            for _ in range(count):
                stack.enter_context(self.dial(server)).sendall(settings)
            files = f"/proc/{server.process.pid}/fd"
            wait_for(lambda: len(os.listdir(files)) >= count)
            stream.await_more()
            with connect(server.address, tls=False) as channel:
                self.assertEqual(info(channel, timeout=20).name, "tiny")

    def test_more_connections_than_files(self):
        """What runs goes on."""
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(serve())
            stream = stack.enter_context(
                Stream(stack.enter_context(connect(server.address, tls=False))))
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (100, 100))
            with contextlib.ExitStack() as crowd:
                for _ in range(150):
                    crowd.enter_context(self.dial(server))
                wait_for(lambda: len(os.listdir(f"/proc/{server.process.pid}/fd")) >= 99)
                stream.await_more()


def peak_bytes(server):
    with open(f"/proc/{server.process.pid}/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BINARY = os.path.join(options.build, "bin", "ovq-server")
    CHAT = os.path.join(options.build, "bin", "ovq-chat")
    unittest.main(argv=[sys.argv[0], *rest])
