"""HAProxy with the shipped rule keeps conversations on their servers.

usage: affinity_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from haproxy_process import HaproxyProcess  # this module knows the path of the program

try:
    import grpc
except ImportError as error:
    print(f"SKIPPED: {error}; install python3-grpcio")
    sys.exit(0)
for tool, package in (("haproxy", "haproxy"), ("protoc", "protobuf-compiler"),
                      ("grpc_python_plugin", "protobuf-compiler-grpc")):
    if shutil.which(tool) is None:
        print(f"SKIPPED: no {tool}; install {package}")
        sys.exit(0)

from server_process import ROOT, ServerProcess, load_stubs
from tiny_model import write_tiny_model

BINARY = None
KEYS = [f"conversation-{i}" for i in range(16)]


class Affinity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="ovq_affinity_test_")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        os.mkdir(os.path.join(cls.folder, "stubs"))
        cls.pb, cls.rpc = load_stubs(os.path.join(cls.folder, "stubs"))
        model = write_tiny_model(os.path.join(cls.folder, "tiny"))
        cls.servers = []
        for _ in range(2):
            cls.servers.append(ServerProcess(BINARY, model, "--state-memory", "64M", "--threads", "1"))
            cls.addClassCleanup(cls.servers[-1].kill)
        # A server that is slow to answer a check, on a loaded machine, is there all the same.
        lines = "    timeout check 20s\n" + "".join(
            f"    server ovq{i + 1} {server.address} proto h2 check inter 200ms fall 1\n"
            for i, server in enumerate(cls.servers))
        # Replaces the resolver.
        cls.proxy = HaproxyProcess(
            os.path.join(ROOT, "deploy", "kubernetes", "affinity", "haproxy.cfg"), cls.folder,
            {r"^    server-template .*\n": lines})
        cls.addClassCleanup(cls.proxy.kill)
        cls.address = cls.proxy.address
        with grpc.insecure_channel(cls.address) as channel:
            grpc.channel_ready_future(channel).result(30)

    def call(self, method, request, key=None, address=None):
        """Makes one call on a new connection."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        metadata = [("ovq-session", key)] if key else None
        with grpc.insecure_channel(address or self.address, options=options) as channel:
            stub = self.rpc.SessionServiceStub(channel)
            return getattr(stub, method)(request, timeout=30, metadata=metadata)

    def test_conversations_stay_and_outlive_another_server(self):
        made = {key: self.call("CreateSession", self.pb.CreateSessionRequest(), key).session_id
                for key in KEYS}
        held = [{session.session_id for session in
                 self.call("ListSessions", self.pb.ListSessionsRequest(), address=server.address).sessions}
                for server in self.servers]
        self.assertEqual(sum(map(len, held)), len(KEYS))
        self.assertTrue(all(held), "both servers have conversations")

        def get(session, key=None):
            request = self.pb.GetSessionRequest(session_id=session)
            return self.call("GetSession", request, key).session_id

        for key, session in made.items():
            self.assertEqual(get(session, key), session)
        # calls alternate: one of the two servers does not know the session
        with self.assertRaises(grpc.RpcError) as caught:
            for _ in range(4):
                get(made[KEYS[0]])
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)

        self.servers[0].terminate()
        self.assertEqual(self.servers[0].wait(), 0)
        for key, session in made.items():
            if session in held[1]:
                self.assertEqual(get(session, key), session)
        moved = next(key for key in KEYS if made[key] in held[0])
        deadline = time.monotonic() + 20
        code = None
        while code != grpc.StatusCode.NOT_FOUND and time.monotonic() < deadline:
            with self.assertRaises(grpc.RpcError) as caught:
                get(made[moved], moved)
            code = caught.exception.code()  # UNAVAILABLE until the proxy has noticed
        self.assertEqual(code, grpc.StatusCode.NOT_FOUND, "its key now leads to the other server")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BINARY = os.path.join(os.path.abspath(options.build), "bin", "ovq-server")
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
