"""The real ovq-server under TLS and with tokens.

usage: security_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import hashlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import security_util as util
from certificates import write_tenants
from security_util import (ALICE, BOB, ROOT_TOKEN, Case, Stream, bearer, connect, grpc,
                           info, metric, path, secure_flags, serve, wait_for)
from server_process import ROOT, run_to_end

BINARY = CHAT = None


def setUpModule():
    util.set_up(BINARY)


def tearDownModule():
    util.tear_down()


def peer_serial(server):
    """Returns the serial number of the certificate that a new connection gets."""
    pem = ssl.get_server_certificate(("127.0.0.1", server.port))
    return subprocess.run(["openssl", "x509", "-noout", "-subject"], input=pem, text=True,
                          check=True, capture_output=True).stdout.strip()


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
                ((path("none.pem"), key), f"--tls-cert: {path('none.pem')}: No such file"),
                ((util.FOLDER, key), f"--tls-cert: {util.FOLDER}: not a regular file"),
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
        self.assertIn("--listen: expected a loopback",
                      self.refused("--listen", "0.0.0.0:0", code=2))

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
                # A broken file keeps the old certificate in use.
                with open(path("live.pem"), "w") as file:
                    file.write("broken")
                wait_for(lambda: metric(server, reloads % "error") == 1)
                self.assertIn("server", peer_serial(server))
                self.assertIn(f"--tls-cert: {path('live.pem')}: expected PEM", server.stderr())
                for kind in ("key", "pem"):
                    shutil.copy(path(f"renewed.{kind}"), path(f"live.{kind}"))
                wait_for(lambda: "renewed" in peer_serial(server))
                self.assertEqual(metric(server, reloads % "ok"), 1)
                server.process.send_signal(signal.SIGHUP)  # reloads even if the files are unchanged
                wait_for(lambda: metric(server, reloads % "ok") == 2)
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

    def test_certificate_of_another_authority_is_refused_by_clients(self):
        with serve(*secure_flags("stranger")) as server, connect(server.address) as channel:
            self.assertFails(grpc.StatusCode.UNAVAILABLE, info, channel)

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
            status = util.admin_pb.GetStatusRequest()
            with connect(address) as channel:
                self.assertFails(grpc.StatusCode.UNAVAILABLE,
                                 lambda: util.admin_rpc.AdminServiceStub(channel).GetStatus(
                                     status, timeout=10))
            with connect(address, "client") as channel:
                stub = util.admin_rpc.AdminServiceStub(channel)
                self.assertEqual(stub.GetStatus(status, timeout=10).model, "tiny")


class Tokens(Case):
    def test_tokens_and_their_reload_while_a_stream_runs(self):
        write_tenants(path("live.json"), {"alice": ALICE, "bob": BOB})
        with serve("--tenants", path("live.json")) as server:
            with connect(server.address, tls=False) as channel, Stream(channel, ALICE) as stream:
                for token in (None, "wrong", BOB + "x", "a b"):
                    error = self.assertFails(grpc.StatusCode.UNAUTHENTICATED, info, channel, token)
                    self.assertIn("expected 'Bearer TOKEN'", error.details())
                    self.assertNotIn(token or BOB, error.details())
                for reason, count in (("missing", 1), ("unknown", 2), ("malformed", 1)):
                    self.assertEqual(
                        metric(server, f'ovq_auth_failures_total{{reason="{reason}"}}'), count)
                info(channel, BOB)
                reloads = 'ovq_credentials_reloads_total{result="%s",what="tenants"}'
                with open(path("live.json"), "w") as file:
                    file.write('{"tenants": [{"name": "alice"}]}')
                wait_for(lambda: metric(server, reloads % "error") == 1)
                self.assertIn("tenant alice: token_sha256: expected", server.stderr())
                info(channel, BOB)
                # Bob's token is withdrawn; alice gets a limit that the running stream uses up.
                write_tenants(path("live.json"), {"alice": ALICE}, {"alice": {"sessions": 1}})
                wait_for(lambda: metric(server, reloads % "ok") == 1)
                self.assertFails(grpc.StatusCode.UNAUTHENTICATED, info, channel, BOB)
                sessions = util.rpc.SessionServiceStub(channel)
                error = self.assertFails(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    lambda: sessions.CreateSession(util.pb.CreateSessionRequest(), timeout=10,
                                                   metadata=bearer(ALICE)))
                self.assertIn("tenant alice: sessions: 1 more on top of 1, the limit is 1",
                              error.details())
                stream.await_more()
            self.assertNotIn(ALICE, server.stderr())

    def test_admin_drains(self):
        with serve("--tenants", path("tenants.json"), "--admin-listen", "127.0.0.1:0") as server:
            address = server.stderr().split("admin on ")[1].split()[0]
            with connect(address, tls=False) as channel:
                stub = util.admin_rpc.AdminServiceStub(channel)
                drain = util.admin_pb.DrainRequest()
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


class Rates(Case):
    def test_opening_and_first_turn_of_a_chat_are_one_request(self):
        write_tenants(path("rates.json"), {"alice": ALICE}, {"alice": {"requests_per_second": 0.01}})
        with open(path("token"), "w") as file:
            file.write(ALICE + "\n")
        with serve("--tenants", path("rates.json")) as server:
            ask = [CHAT, "--server", server.address, "--token-file", path("token"), "--interactive",
                   "--max-tokens", "2"]
            # One request may start at once, so the second turn is refused.
            run = subprocess.run(ask, input="first\nsecond\n", capture_output=True, text=True,
                                 timeout=60)
        self.assertEqual(run.returncode, 1)
        self.assertEqual(run.stderr.count("| length]"), 1, run.stderr)
        self.assertIn("RESOURCE_EXHAUSTED: tenant alice: requests_per_second", run.stderr)


class Clients(Case):
    def test_tls_and_tokens(self):
        with open(path("token"), "w") as file:
            file.write(ALICE + "\n")
        with open(path("bad_token"), "w") as file:
            file.write("wrong-token\n")
        with serve() as plain, serve(*secure_flags(), "--tls-client-ca", path("ca.pem"),
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
                    self.assertIn("leave --tls-ca and --tls-cert out", run(
                        *identity, "--server", plain.address).stderr)
                    good = run(*identity, "--token-file", path("token"))
                    self.assertEqual(good.returncode, 0, good.stderr)
                    bad = run(*identity, "--token-file", path("bad_token"))
                    self.assertEqual(bad.returncode, 1)
                    self.assertIn("UNAUTHENTICATED", bad.stderr)
                    self.assertNotIn("wrong-token", bad.stderr)
                    self.assertIn("UNAVAILABLE", run("--token-file", path("token")).stderr)
                    self.assertEqual(run("--tls-cert", path("client.pem")).returncode, 2)
                    for flags, hint in (
                            ((), "if it asks for TLS, --tls-ca is missing"),
                            (("--tls-ca", path("ca.pem")), "--tls-cert and --tls-key are missing"),
                            (("--tls-ca", path("other_ca.pem"), *identity[2:]), "(--tls-ca) vouches"),
                            (identity, "no token was sent: --token-file is missing"),
                            ((*identity, "--token-file", path("bad_token")),
                             "(--token-file) is another")):
                        refused = run(*flags)
                        self.assertEqual((refused.returncode, refused.stderr.count("\n")), (1, 1),
                                         refused.stderr)
                        self.assertIn(hint, refused.stderr)
                    missing = run("--tls-ca", path("none"))
                    self.assertNotEqual(missing.returncode, 0)
                    self.assertIn(path("none"), missing.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BINARY = os.path.join(options.build, "bin", "ovq-server")
    CHAT = os.path.join(options.build, "bin", "ovq-chat")
    unittest.main(argv=[sys.argv[0], *rest])
