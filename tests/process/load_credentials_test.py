"""ovq-load with a fake server that requires a certificate and a token.

usage: load_credentials_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import os
import sys
import unittest
from concurrent import futures

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

try:
    import grpc
except ImportError as error:
    print(f"SKIPPED: {error}; install python3-grpcio")
    sys.exit(0)

from certificates import make_authority, make_certificate
from fake_server import compile_proto
from load_process import WithLoad


class Credentials(WithLoad):
    """A fake server that requires a client certificate and a token, and sends tokens in messages of
    three."""

    TOKEN = "secret-of-the-test"

    def setUp(self):
        super().setUp()
        make_authority(self.folder)
        make_certificate(self.folder, "server")
        make_certificate(self.folder, "client")
        pb, pb_grpc = compile_proto(self.path(""))
        test = self

        class Service(pb_grpc.InferenceServiceServicer):
            peers = set()

            def check(self, context):
                metadata = dict(context.invocation_metadata())
                if metadata.get("authorization") != f"Bearer {test.TOKEN}":
                    context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
                self.peers.add(context.peer())

            def GetModelInfo(self, request, context):
                self.check(context)
                return pb.ModelInfo(name="fake", vocab_size=10)

            def Generate(self, request, context):
                self.check(context)
                if not request.stop.ignore_eos or max(request.prompt.token_ids.ids) >= 10:
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not as promised")
                left = request.stop.max_tokens
                while left > 0:
                    n = min(3, left)
                    yield pb.GenerateResponse(chunk=pb.TokenChunk(token_ids=[1] * n))
                    left -= n
                usage = pb.Usage(prompt_tokens=len(request.prompt.token_ids.ids),
                                 generated_tokens=request.stop.max_tokens)
                yield pb.GenerateResponse(finished=pb.Finished(usage=usage))

        def read(name):
            with open(self.path(name), "rb") as file:
                return file.read()

        self.service = Service()
        server = grpc.server(futures.ThreadPoolExecutor(4))
        pb_grpc.add_InferenceServiceServicer_to_server(self.service, server)
        credentials = grpc.ssl_server_credentials([(read("server.key"), read("server.pem"))],
                                                  read("ca.pem"), require_client_auth=True)
        self.address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', credentials)}"
        server.start()
        self.addCleanup(lambda: server.stop(None).wait())
        self.token = self.write("token", self.TOKEN + "\n")
        self.tls = ("--tls-ca", self.path("ca.pem"), "--tls-cert", self.path("client.pem"),
                    "--tls-key", self.path("client.key"))

    def test_tls_token_and_connections(self):
        report, _, _ = self.run_load(self.address, *self.tls, "--token-file", self.token,
                                     "--requests=9", "--output-length=7", "--connections=3",
                                     "--concurrency=3", "--detailed")
        self.assertEqual((report["completed"], report["failed"]), (9, 0))
        self.assertEqual(len(self.service.peers), 3)
        # Messages of 3, 3 and 1 tokens: two tokens share the first one's wait, four gaps remain.
        self.assertEqual({len(gaps) for gaps in report["itls"]}, {6})
        self.assertAlmostEqual(report["ovq"]["tokens_per_chunk"]["mean"], 7 / 3)

    def test_a_token_from_a_pipe_is_for_all_connections(self):
        report, _, _ = self.run_load(self.address, *self.tls, "--token-file=/dev/stdin", "--requests=9",
                                     "--connections=3", "--concurrency=3", stdin=self.TOKEN)
        self.assertEqual((report["completed"], report["failed"]), (9, 0))
        self.assertEqual(len(self.service.peers), 3)

    def test_without_the_token(self):
        _, _, stderr = self.run_load(self.address, *self.tls, expect=1)
        self.assertIn("UNAUTHENTICATED: no token", stderr)
        self.assertNotIn(self.TOKEN, stderr)

    def test_without_a_certificate(self):
        _, _, stderr = self.run_load(self.address, "--tls-ca", self.path("ca.pem"), expect=1)
        self.assertIn("UNAVAILABLE", stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    WithLoad.binary = os.path.join(os.path.abspath(options.build), "bin", "ovq-load")
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
