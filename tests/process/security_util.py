"""Shared by the security tests: a folder with a model, stubs and certificates, servers,
connections, and streams that other clients must not disturb."""

import contextlib
import os
import shutil
import sys
import tempfile
import threading
import unittest

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
from server_process import ServerProcess, load_stubs, wait_for
from tiny_model import write_tiny_model

ALICE, BOB, ROOT_TOKEN = (f"{name}-0123456789-abcdefghij" for name in ("alice", "bob", "root"))
BINARY = FOLDER = pb = rpc = admin_pb = admin_rpc = None


def set_up(binary):
    global BINARY, FOLDER, pb, rpc, admin_pb, admin_rpc
    BINARY = binary
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


def tear_down():
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
    # Channels with equal arguments share subchannels; each test needs its own.
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
    for line in server.metrics().splitlines():
        if line.rsplit(" ", 1)[0] == name:
            return float(line.rsplit(" ", 1)[1])
    return None


class Stream:
    """A long answer that is read continuously: other clients must not disturb it."""

    def __init__(self, channel, token=None):
        request = pb.GenerateRequest(
            prompt=pb.Prompt(text="on and on"), sampling=pb.SamplingParams(seed=1),
            stop=pb.StopConditions(max_tokens=10_000_000, ignore_eos=True))
        self._call = rpc.InferenceServiceStub(channel).Generate(
            request, timeout=600, metadata=bearer(token) if token else None)
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


def closed_by_peer(connection, seconds):
    """Reads to the end of a connection; returns false if it does not come in time."""
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
        return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False
