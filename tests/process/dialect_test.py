"""Common behaviour of all programs: flags, --help, --version and exit codes; and ovq-admin.

usage: dialect_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import json
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import security_util as util
from security_util import ALICE, BOB, ROOT_TOKEN, bearer, connect, path, serve
from server_process import ROOT

BIN = None
CLIENTS = ("ovq-chat", "ovq-load", "ovq-admin", "ovq_client")
SHARED = ("--server", "--tls-ca", "--tls-cert", "--tls-key", "--token-file", "--help", "--version")


def setUpModule():
    util.set_up(os.path.join(BIN, "ovq-server"))


def tearDownModule():
    util.tear_down()


def run(program, *flags, env=None, stdout=subprocess.PIPE):
    command = [os.path.join(BIN, program)]
    if program == "ovq_client":
        command = [sys.executable, "-m", "ovq_client"]
    return subprocess.run(
        [*command, *flags], stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "clients", "python"), **(env or {})})


class Dialect(unittest.TestCase):
    ASK = {"ovq-chat": ["--prompt", "x"], "ovq-load": ["--requests=1"], "ovq-admin": ["status"],
           "ovq_client": ["info"]}

    def test_help_and_version(self):
        for program in (*CLIENTS, "ovq-server", "ovq-inspect"):
            with self.subTest(program):
                short, long = run(program, "-h"), run(program, "--help")
                self.assertEqual((short.returncode, long.returncode), (0, 0), long.stderr)
                self.assertEqual(short.stdout, long.stdout)
                version = run(program, "--version")
                self.assertEqual((version.returncode, version.stdout),
                                 (0, f"{program} {self.version()}\n"))
                wanted = SHARED if program in CLIENTS else SHARED[-2:]
                self.assertEqual([flag for flag in wanted if flag not in long.stdout], [])
                self.assertRegex(long.stdout, r"also -h|-h, --help")

    def version(self):
        with open(os.path.join(ROOT, "CMakeLists.txt")) as file:
            return re.search(r"project\(ovq_server VERSION (\S+)", file.read()).group(1)

    def test_exit_codes(self):
        for program in CLIENTS:
            with self.subTest(program):
                bad = run(program, *self.ASK[program], "--nonsense")
                self.assertEqual(bad.returncode, 2, bad.stderr)
                self.assertIn("--nonsense", bad.stderr)
                alone = run(program, "--tls-cert", "x", *self.ASK[program])
                self.assertEqual(alone.returncode, 2, alone.stderr)
                self.assertIn("--tls-key", alone.stderr)
                nobody = run(program, "--server", "127.0.0.1:1", *self.ASK[program])
                self.assertEqual(nobody.returncode, 1, nobody.stderr)
                self.assertIn("UNAVAILABLE", nobody.stderr)

    def test_an_address_of_another_kind_is_named(self):
        with serve("--admin-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0") as server:
            admin = re.search(r"admin on (127\.0\.0\.1:\d+)", server.stderr()).group(1)
            http = re.search(r"http on http://(127\.0\.0\.1:\d+)", server.stderr()).group(1)
            for program in CLIENTS:
                other = server.address if program == "ovq-admin" else admin
                for address, hint in ((other, "--server: this address serves other calls"),
                                      (http, "--server: this address speaks HTTP/1.1")):
                    with self.subTest((program, hint)):
                        wrong = run(program, "--server", address, *self.ASK[program])
                        self.assertEqual(wrong.returncode, 1, wrong.stderr)
                        self.assertIn(hint, wrong.stderr)
            example = subprocess.run([sys.executable, os.path.join(ROOT, "clients/python/examples/tools.py"),
                                      "--server", f"http://{server.address}", "x"], capture_output=True, text=True,
                                     timeout=60)
            self.assertEqual((example.returncode, example.stderr.count("\n")), (1, 1), example.stderr)
            self.assertIn("--server: this address does not speak HTTP", example.stderr)

    def test_output_that_cannot_be_written_is_an_error(self):
        with serve("--admin-listen", "127.0.0.1:0") as server, open("/dev/full", "w") as full:
            admin = re.search(r"admin on (127\.0\.0\.1:\d+)", server.stderr()).group(1)
            asked = [(program, "--server", admin if program == "ovq-admin" else server.address,
                      *self.ASK[program]) for program in CLIENTS]
            for command in (*asked, ("ovq-inspect", os.path.join(ROOT, "models", "scripted-chat"))):
                with self.subTest(command[0]):
                    lost = run(*command, stdout=full)
                    self.assertEqual(lost.returncode, 1, lost.stderr)
                    self.assertRegex(lost.stderr, "No space left on device|output could not be written")

    def test_address_from_the_environment(self):
        with serve() as server:
            for program in CLIENTS:
                if program == "ovq-admin":
                    continue
                with self.subTest(program):
                    env = {"OVQ_SERVER": server.address}
                    self.assertEqual(run(program, *self.ASK[program], env=env).returncode, 0)
                    bad = run(program, *self.ASK[program], env={"OVQ_SERVER": "nowhere"})
                    self.assertEqual(bad.returncode, 2, bad.stderr)
                    self.assertIn("OVQ_SERVER", bad.stderr)
                    # An empty one counts as absent: the program comes as far as its next fault.
                    empty = run(program, "--tls-ca", "/no/such/file", *self.ASK[program], env={"OVQ_SERVER": ""})
                    self.assertIn("/no/such/file", empty.stderr)
                    self.assertNotIn("OVQ_SERVER", empty.stderr)


class Admin(unittest.TestCase):
    def setUp(self):
        for name, token in (("root_token", ROOT_TOKEN), ("alice_token", ALICE)):
            with open(path(name), "w") as file:
                file.write(token + "\n")
        self.servers = []
        for _ in range(2):
            server = serve("--tenants", path("tenants.json"), "--admin-listen", "127.0.0.1:0")
            self.addCleanup(server.kill)
            self.servers.append(server)
        self.addresses = [re.search(r"admin on (127\.0\.0\.1:\d+)", server.stderr()).group(1)
                          for server in self.servers]
        self.both = ("--server", ",".join(self.addresses), "--token-file", path("root_token"))

    def create(self, server, token):
        with connect(server.address, tls=False) as channel:
            sessions = util.rpc.SessionServiceStub(channel)
            return sessions.CreateSession(util.pb.CreateSessionRequest(),
                                          metadata=bearer(token)).session_id

    def test_sessions_of_all_servers(self):
        ids = [self.create(self.servers[0], ALICE), self.create(self.servers[1], BOB)]
        shown = run("ovq-admin", "sessions", *self.both)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        first, second = shown.stdout.split(self.addresses[1])
        self.assertIn(f"{ids[0]} tenant 'alice' position 0", first)
        self.assertIn(f"{ids[1]} tenant 'bob'", second)
        self.assertEqual(shown.stdout.count("1 session of this server"), 2)
        lines = run("ovq-admin", "sessions", "--json", *self.both).stdout.splitlines()
        self.assertEqual([json.loads(line)["session"]["session_id"] for line in lines], ids)
        # The server that has the session ends it; a session that no server has is an error.
        refused = run("ovq-admin", "delete", ids[1], "--json", *self.both)
        self.assertEqual((refused.returncode, refused.stderr),
                         (2, "ovq-admin: --json: expected status or sessions with it\n"))
        gone = run("ovq-admin", "delete", ids[1], *self.both)
        self.assertEqual((gone.returncode, gone.stdout), (0, f"{self.addresses[1]} had it\n"))
        missing = run("ovq-admin", "delete", ids[1], *self.both)
        self.assertEqual(missing.returncode, 1)
        self.assertIn("NOT_FOUND", missing.stderr)

    def test_status_and_drain(self):
        self.create(self.servers[0], ALICE)
        # The engine's figures are those of an iteration that has ended.
        util.wait_for(lambda: ", 1 idle," in run("ovq-admin", "status", *self.both).stdout, "the session is shown")
        shown = run("ovq-admin", "status", *self.both)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertRegex(shown.stdout, r"ovq-server \S+, model tiny, up ")
        self.assertIn("sessions: 0 active, 1 idle, at most 1024", shown.stdout)
        self.assertRegex(shown.stdout, r"tenant alice: sessions 1, states ")
        status = json.loads(run("ovq-admin", "status", "--json", *self.both).stdout.splitlines()[0])
        self.assertEqual((status["sessions_idle"], status["draining"]), ("1", False))
        drained = run("ovq-admin", "drain", "--server", self.addresses[0], *self.both[2:])
        self.assertEqual((drained.returncode, drained.stdout), (0, f"{self.addresses[0]} drains\n"))
        self.assertEqual(self.servers[0].wait(), 0)
        # A server that cannot be reached does not keep the other from being queried.
        rest = run("ovq-admin", "status", *self.both)
        self.assertEqual(rest.returncode, 1)
        self.assertIn(f"{self.addresses[0]}: UNAVAILABLE", rest.stderr)
        self.assertIn(self.addresses[1], rest.stdout)

    def test_wrong_calls(self):
        refused = run("ovq-admin", "status", "--server", self.addresses[0], "--token-file",
                      path("alice_token"))
        self.assertEqual(refused.returncode, 1)
        self.assertIn("PERMISSION_DENIED", refused.stderr)
        nobody = run("ovq-admin", "status", env={"OVQ_ADMIN_SERVER": self.addresses[0]})
        self.assertIn("no token was sent: --token-file is missing", nobody.stderr)
        for arguments, message in (((), "expected a command"), (("fly",), "status"),
                                   (("delete",), "expected a session's id"),
                                   (("status", "x"), "status takes no id"),
                                   (("status", "--server", "a,"), "HOST:PORT")):
            with self.subTest(arguments):
                bad = run("ovq-admin", *arguments)
                self.assertEqual(bad.returncode, 2)
                self.assertIn(message, bad.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BIN = os.path.join(os.path.abspath(options.build), "bin")
    unittest.main(argv=[sys.argv[0], *rest])
