"""HAProxy with the shipped rule for HTTP: requests that continue a response reach the server that
has it.

usage: http_proxy_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import os
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from haproxy_process import HaproxyProcess  # this module knows the path of the program

if shutil.which("haproxy") is None:
    print("SKIPPED: no haproxy; install haproxy")
    sys.exit(0)

from http_client import HttpClient, http_port, write_chat_model
from server_process import ROOT, ServerProcess

BINARY = None


class Affinity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="ovq_http_proxy_test_")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        model = write_chat_model(os.path.join(cls.folder, "tiny"))
        cls.servers = []
        for _ in range(2):
            cls.servers.append(ServerProcess(BINARY, model, "--state-memory", "64M", "--threads", "1",
                                             "--http-listen", "127.0.0.1:0"))
            cls.addClassCleanup(cls.servers[-1].kill)
        first, second = (f"127.0.0.1:{http_port(server)}" for server in cls.servers)
        admin = os.path.join(cls.folder, "admin.sock")
        cls.proxy = HaproxyProcess(os.path.join(ROOT, "deploy", "haproxy", "haproxy-http.cfg"), cls.folder, {
            r"^    user haproxy\n    group haproxy\n": f"    stats socket {admin} level admin\n",
            r"192\.0\.2\.1:8080": first,
            r"192\.0\.2\.2:8080": second})
        cls.addClassCleanup(cls.proxy.kill)
        for name in ("ovq1", "ovq2"):
            cls.proxy.await_status(name, "UP")

    def call(self, method, path, body=None, port=None, headers=None):
        client = HttpClient(port or self.proxy.port)  # a new connection
        try:
            return client.call(method, path, body, headers=headers)
        finally:
            client.close()

    def test_conversations_stay(self):
        def respond(**fields):
            status, answer, headers = self.call("POST", "/v1/responses",
                                                {"max_output_tokens": 2, **fields})
            self.assertEqual(status, 200, answer)
            self.assertEqual(answer["id"].split(".")[0], "resp_" + headers["ovq-session"])
            return answer["id"]
        firsts = [respond(input="hi") for _ in range(8)]
        held = [len(self.call("GET", "/ovq/v1/sessions", port=http_port(server))[1].get("sessions", []))
                for server in self.servers]
        self.assertEqual((sum(held), 0 in held), (8, False), held)
        for first in firsts:
            # The id comes after a long text.
            second = respond(input="x" * 50000, previous_response_id=first)
            third = respond(input="and", previous_response_id=second)
            self.assertEqual(self.call("GET", f"/v1/responses/{third}")[0], 200)
            self.assertEqual(self.call("GET", f"/ovq/v1/sessions/{first[5:]}")[0], 200)
            self.assertEqual(self.call("DELETE", f"/v1/responses/{first}")[0], 200)

    def stored(self):
        status, answer, _ = self.call("POST", "/v1/responses", {"input": "hi", "max_output_tokens": 2})
        self.assertEqual(status, 200, answer)
        self.addCleanup(self.call, "DELETE", f"/v1/responses/{answer['id']}")
        return answer["id"]

    def test_slashes_do_not_matter(self):
        first = self.stored()
        for path in (f"//v1/responses/{first}", f"/v1/responses//{first}", f"/v1/responses/{first}/",
                     f"//ovq/v1//sessions/{first[5:]}"):
            for _ in range(4):  # by round robin half of them would go to the other server
                self.assertEqual(self.call("GET", path)[0], 200, path)
        for path in ("//v1/responses", "/v1/responses/"):
            for _ in range(4):
                body = {"input": "x", "max_output_tokens": 2, "previous_response_id": first, "store": False}
                self.assertEqual(self.call("POST", path, body)[0], 200, path)

    def test_an_answer_of_the_other_server_moves_no_conversation(self):
        first = self.stored()
        # The proxy does not see the KEY in these, so one of them soon comes to the server that has not got it.
        starts = ("%72esp_", "r%65sp_", "re%73p_", "res%70_")
        self.assertIn(404, (self.call("GET", f"/v1/responses/{start}{first[5:]}")[0] for start in starts))
        for _ in range(4):
            self.assertEqual(self.call("GET", f"/v1/responses/{first}")[0], 200)

    def test_chats_stay_by_any_name_of_their_key(self):
        def cached(text, headers, fields):
            status, answer, _ = self.call("POST", "/v1/chat/completions", {
                "messages": [{"role": "user", "content": text}], "max_tokens": 1, **fields}, headers=headers)
            self.assertEqual(status, 200, answer)
            return answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        names = ["x-session-id", "session-id", "session_id", "x-session-affinity", "x-claude-code-session-id"]
        ways = [({name: "a key: of " + name}, {}) for name in names]
        ways += [({name: name}, {}) for name in ["ovq-session", *names]] + [({}, {"prompt_cache_key": "some/one"})]
        for i, (headers, fields) in enumerate(ways):
            text = f"{i} " + "x" * 200
            self.assertEqual(cached(text, headers, fields), 0)
            for _ in range(4):  # by round robin half of them would go to the other server
                self.assertGreater(cached(text, headers, fields), 150, (headers, fields))



if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BINARY = os.path.join(os.path.abspath(options.build), "bin", "ovq-server")
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
