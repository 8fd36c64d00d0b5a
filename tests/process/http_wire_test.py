"""The HTTP front of a real server byte for byte, its limits, tenants, TLS, and the drain.

usage: http_wire_test.py --build BUILD_FOLDER [unittest arguments]
"""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
import unittest

import http_case
from certificates import make_authority, make_certificate, write_tenants
from http_case import HttpCase, main, path_of, serve
from http_client import HttpClient, http_port
from server_process import run_to_end, wait_for

ALICE, BOB = (f"{name}-0123456789-abcdefghij" for name in ("alice", "bob"))


def refuses(port):
    """Says whether the server's drain has begun, so that it refuses requests or ends their connections."""
    client = HttpClient(port)
    try:
        return client.post("/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 503
    except (OSError, http.client.HTTPException):
        return True
    finally:
        client.close()


class Wire(HttpCase):
    """Requests that are sent byte for byte."""

    def raw(self, data, half_close=False):
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as peer:
            peer.sendall(data)
            if half_close:
                peer.shutdown(socket.SHUT_WR)
            got = b""
            while part := peer.recv(65536):
                got += part
            return got

    def test_faults(self):
        self.error(self.http.get("/nothing"), 404, "path")
        self.error(self.http.call("PUT", "/v1/completions", {}), 405, "POST")
        self.error(self.http.post("/v1/completions", "{", ), 400, "body")
        self.error(self.http.post("/v1/completions", "[" * 100), 400, "nested")
        self.error(self.http.post("/v1/completions", b'{"prompt": "\xff"}'), 400, "UTF-8")
        self.error(self.http.post("/v1/completions", '{"prompt": "a", "prompt": "b"}'), 400, "prompt")
        self.error(self.http.post("/v1/completions", "prompt=x", headers={
            "Content-Type": "application/x-www-form-urlencoded"}), 415, "application/json")
        self.error(self.http.get("/v1/models", headers={"Host": "evil.example"}), 403, "host")
        self.error(self.http.get("/v1/models", headers={"Origin": "http://evil.example"}), 403,
                   "origin")
        self.assertIn(b" 400 ", self.raw(b"nonsense\r\n\r\n"))
        self.assertIn(b" 400 ", self.raw(b"GET / HTTP/1.1\r\nX: " + b"x" * 20000 + b"\r\n\r\n"))
        # Requests that a proxy and the server could interpret differently are refused.
        post = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\n")
        for framing in (b"Content-Length: 5\r\nTransfer-Encoding: chunked",
                        b"Transfer-Encoding: chunked\r\nContent-Length: 5",
                        b"Content-Length: 5\r\nContent-Length: 6", b"Content-Length: -1",
                        b"Content-Length : 5", b"Transfer-Encoding: gzip",
                        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip"):
            answer = self.raw(post + framing + b"\r\n\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n")
            self.assertEqual((answer.count(b"HTTP/1.1 "), answer.count(b"HTTP/1.1 400")), (1, 1), framing)
        # A proxy that skips what follows a bad chunk would take it for the next request.
        chunks = post + b"Transfer-Encoding: chunked\r\n\r\n"
        for bad in (b"zz\r\n{}", b"2\r\n{}{}\r\n", b"-1\r\n{}", b"f" * 17 + b"\r\n{}",
                    # sizes with extensions, and trailers, are bounded and end no server
                    b"2;" + b"x" * 100000, b"2\r\n{}\r\n0\r\nX: " + b"x" * 100000 + b"\r\n\r\n"):
            try:
                self.assertTrue(self.raw(chunks + bad).startswith(b"HTTP/1.1 400"), bad[:40])
            except (BrokenPipeError, ConnectionResetError):
                pass  # the answer came while the body was still being sent
            self.assertEqual(self.http.get("/version")[0], 200)
        huge = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n"
        self.assertIn(b" 413 ", self.raw(huge))
        chunked = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                   b"Transfer-Encoding: chunked\r\n\r\n1400000\r\n" + b"x" * 0x1400000)
        try:
            self.assertIn(b" 413 ", self.raw(chunked))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the answer came while the body was still being sent

    def test_one_connection_serves_many(self):
        # either order of threads: the answer may come first, or the wait for it
        for _ in range(25):
            self.error(self.http.post("/v1/completions", "{"), 400)
            self.error(self.http.call("PUT", "/v1/completions", {}), 405)
        one = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
        last = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        got = self.raw(one * 3 + last)
        self.assertEqual(got.count(b"HTTP/1.1 200 OK"), 4)
        self.assertEqual(self.raw(b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n"
                                  b"Connection: close\r\n\r\n").count(b"\r\n\r\n"), 1)
        self.assertIn(b"200 OK", self.raw(b"GET /version HTTP/1.0\r\nHost: localhost\r\n\r\n"))
        # Connections of HTTP/1.0 stay open for who asks for it, and line breaks between are skipped.
        asked = b"GET /version HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
        got = self.raw(b"\r\n" + asked + b"\r\n\r\n" + asked + last)
        self.assertEqual((got.count(b" 200 OK"), got.count(b"Connection: keep-alive\r\n")), (3, 2))
        # The last word on the connection counts, whichever header it is in.
        self.assertIn(b"Connection: close\r\n", self.raw(
            b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n"))

    def test_request_lines_and_hosts(self):
        def status(line, *headers):
            answer = self.raw("\r\n".join([line, *headers, "Connection: close", "", ""]).encode())
            self.assertRegex(answer, rb"\r\nDate: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT\r\n")
            return int(answer.split()[1])
        # The authority of a target in absolute form replaces the host.
        self.assertEqual(status("GET http://localhost/v1/models HTTP/1.1", "Host: evil.example"), 200)
        self.assertEqual(status("GET HTTP://[::1]:80?x=/ HTTP/1.1", "Host: x"), 200)
        self.assertEqual(status("GET http://evil.example/v1/models HTTP/1.1", "Host: localhost"), 403)
        self.assertEqual(status("GET /v1/models HTTP/1.1"), 400)
        self.assertEqual(status("GET /v1/models HTTP/1.1", "Host: localhost", "Host: localhost"), 400)
        self.assertEqual(status("GET /v1/models HTTP/1.0"), 200)
        self.assertEqual(status("OPTIONS * HTTP/1.1", "Host: localhost"), 204)
        self.assertEqual(status("POST /tokenize HTTP/1.0", "Transfer-Encoding: chunked"), 400)
        self.assertNotIn(b"Content-Length", self.raw(
            b"OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))

    def test_continue_is_said_to_who_waits(self):
        head = (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 15\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n")
        body = b'{"prompt":"hi"}'
        self.assertTrue(self.raw(head + body).startswith(b"HTTP/1.1 200"))
        self.assertTrue(self.raw(head.replace(b"/1.1", b"/1.0") + body).startswith(b"HTTP/1.1 200"))
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as peer:
            peer.sendall(head)
            self.assertEqual(peer.recv(1000), b"HTTP/1.1 100 Continue\r\n\r\n")
            peer.sendall(body)
            self.assertTrue(peer.recv(1000).startswith(b"HTTP/1.1 200"))

    def test_who_goes_is_not_answered(self):
        body = json.dumps({"prompt": "x", "max_tokens": 4000000000, "stream": True,
                           "ignore_eos": True}).encode()
        head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n" % len(body))
        for half in (True, False):
            with socket.create_connection(("127.0.0.1", self.port)) as peer:
                peer.sendall(head + body)
                peer.recv(1000)
                self.wait_until_running(1)
                if half:
                    peer.shutdown(socket.SHUT_WR)
                    self.wait_until_running(0)
            self.wait_until_running(0)
        self.assertIn('route="/v1/completions",status="499"', self.server.metrics())

    def running(self):
        return int(self.http.get("/ovq/v1/status")[1].get("requestsRunning", 0))

    def wait_until_running(self, count):
        # The engine publishes its figures behind an iteration, so an answer may come before them.
        end = time.monotonic() + 10
        while self.running() != count:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def test_metrics_log_and_trace(self):
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        headers = self.http.get("/v1/models", headers={
            "traceparent": trace, "x-request-id": "mine-1"})[2]
        self.assertEqual(headers["x-request-id"], "mine-1")
        self.assertTrue(headers["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-"))
        page = self.server.metrics()
        self.assertRegex(page, r'ovq_http_requests_total\{[^}]*route="/v1/models",status="200"\} [1-9]')
        self.assertRegex(page, r"ovq_http_connections\{[^}]*\} [1-9]")
        self.assertRegex(page, r'ovq_http_bytes_total\{[^}]*direction="sent"\} [1-9]')
        deadline = time.monotonic() + 10
        while "mine-1" not in self.server.stderr():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)


class Limits(unittest.TestCase):
    def client(self, port, headers=None):
        client = HttpClient(port, headers)
        self.addCleanup(client.close)
        return client

    def test_connections(self):
        with serve("--http-max-connections", "4", "--handshake-timeout", "1s") as server:
            port = http_port(server)
            slow = []
            for _ in range(6):  # silent connections, of which the oldest are closed
                slow.append(socket.create_connection(("127.0.0.1", port), timeout=10))
                time.sleep(0.05)
            newcomer = HttpClient(port)
            self.assertEqual(newcomer.get("/v1/models")[0], 200)
            newcomer.close()
            self.assertEqual(slow[0].recv(10), b"")
            self.assertEqual(slow[-1].recv(10), b"")  # within ten seconds
            for peer in slow:
                peer.close()
            self.assertRegex(server.metrics(),
                             r'ovq_http_connections_refused_total\{[^}]*reason="idle"\} [1-9]')

    def test_a_crowd_s_connections_give_way(self):
        def stream(source="127.0.0.1"):
            peer = http.client.HTTPConnection("127.0.0.1", port, timeout=20, source_address=(source, 0))
            self.addCleanup(peer.close)
            peer.request("POST", "/v1/completions", json.dumps({
                "prompt": "x", "max_tokens": 4000000000, "stream": True, "ignore_eos": True}),
                {"Content-Type": "application/json"})
            answer = peer.getresponse()
            self.assertEqual(answer.status, 200)
            self.assertTrue(answer.readline().startswith(b"data: {"))
            return answer

        with serve("--http-max-connections", "4") as server:
            port = http_port(server)
            crowd = [stream() for _ in range(4)]
            guests = [stream("127.0.0.2"), stream("127.0.0.2")]
            for ended in crowd[2:]:  # the newest
                with self.assertRaises((http.client.IncompleteRead, ConnectionError)):
                    ended.read()
            # Two of each: nobody has more than a third one would make.
            for source in ("127.0.0.1", "127.0.0.2"):
                with self.assertRaises(ConnectionError):
                    stream(source)
            for going_on in (*crowd[:2], *guests):
                self.assertTrue(going_on.readline())
            for reason, count in (("gave_way", 2), ("max_connections", 2)):
                self.assertRegex(server.metrics(),
                                 rf'ovq_http_connections_refused_total\{{[^}}]*reason="{reason}"\}} {count}\n')

    def test_tenants(self):
        path = path_of("tenants.json")
        write_tenants(path, {"alice": ALICE, "bob": BOB})
        with serve("--tenants", path) as server:
            port = http_port(server)
            nobody = self.client(port)
            status, answer, headers = nobody.get("/v1/models")
            self.assertEqual((status, answer["error"]["code"], headers["WWW-Authenticate"]),
                             (401, "invalid_api_key", "Bearer"))
            self.assertEqual(nobody.get("/health")[0], 200)
            alice, bob = (self.client(port, {"Authorization": f"Bearer {token}"})
                          for token in (ALICE, BOB))
            session = alice.post("/ovq/v1/sessions", {})[1]["sessionId"]
            self.assertEqual(alice.get(f"/ovq/v1/sessions/{session}")[0], 200)
            self.assertEqual(bob.get(f"/ovq/v1/sessions/{session}")[0], 404)

    def test_beyond_loopback_only_with_tokens(self):
        code, _, stderr = run_to_end(http_case.binary, "--model", path_of("tiny"),
                                     "--http-listen", "0.0.0.0:0")
        self.assertEqual(code, 2)
        self.assertIn("--http-listen: expected a loopback address", stderr)

    def test_hosts_and_origins(self):
        path = path_of("pages.json")
        write_tenants(path, {"alice": ALICE})
        page = {"Origin": "https://chat.example"}
        with serve("--http-allowed-hosts", "a.example", "--tenants", path,
                   "--http-allowed-origins", "https://chat.example") as server:
            client = self.client(http_port(server))
            self.assertEqual([client.get("/v1/models", headers={"Host": host})[0]
                              for host in ("a.example:1", "b.example")], [401, 403])
            status, _, headers = client.get("/v1/models", headers=page)
            self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (401, page["Origin"]))
            # A preflight has no token.
            status, _, headers = client.call("OPTIONS", "/v1/models", headers={
                **page, "Access-Control-Request-Headers": "authorization"})
            self.assertEqual((status, headers["Access-Control-Allow-Headers"]), (204, "authorization"))
        with serve("--http-allowed-origins", "*") as server:
            self.assertIn("--http-allowed-origins=*: any page", server.stderr())
            self.assertEqual(self.client(http_port(server)).get("/v1/models", headers=page)[0], 200)
        code, _, stderr = run_to_end(http_case.binary, "--model", path_of("tiny"),
                                     "--http-allowed-hosts", "http://a")
        self.assertEqual(code, 2)
        self.assertIn("--http-allowed-hosts: expected at most 256 names of hosts", stderr)

    def test_limits_of_a_tenant(self):
        path = path_of("limited.json")
        write_tenants(path, {"alice": ALICE, "bob": BOB},
                      {"alice": {"requests_per_second": 0.1, "sessions": 1}})
        with serve("--tenants", path) as server:
            port = http_port(server)
            alice, bob = (self.client(port, {"Authorization": f"Bearer {token}"})
                          for token in (ALICE, BOB))
            answers = [alice.get("/v1/models") for _ in range(5)]
            status, answer, headers = answers[-1]
            self.assertEqual((status, answer["error"]["type"], answer["error"]["code"]),
                             (429, "rate_limit_error", "tenant_requests"), answers)
            self.assertGreaterEqual(int(headers["Retry-After"]), 1)
            self.assertGreaterEqual(int(headers["Retry-After"]) * 1000, int(headers["Retry-After-Ms"]))
            self.assertEqual(bob.get("/v1/models")[0], 200)

    def test_every_byte_is_counted_once(self):
        with serve() as server:
            def received():
                return int(float(re.search(r'ovq_http_bytes_total\{[^}]*direction="received"[^}]*\} (\S+)',
                                           server.metrics()).group(1)))
            sent = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
                    + b"x" * 1000) * 3
            with socket.create_connection(("127.0.0.1", http_port(server)), timeout=10) as peer:
                peer.sendall(sent[:1500])
                time.sleep(0.05)
                peer.sendall(sent[1500:])
                got = b""
                while got.count(b"HTTP/1.1 415") < 3:
                    got += peer.recv(65536)
                self.assertEqual(received(), len(sent))

    def test_tls(self):
        for name in ("ca", "other_ca"):
            make_authority(http_case.folder, name)
        for name in ("server", "renewed", "client"):
            make_certificate(http_case.folder, name)
        file = {name: os.path.join(http_case.folder, name) for name in os.listdir(http_case.folder)}

        def ask(ca="ca.pem", identity=None):
            context = ssl.create_default_context(cafile=file[ca])
            if identity:
                context.load_cert_chain(file[f"{identity}.pem"], file[f"{identity}.key"])
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
            self.addCleanup(connection.close)
            connection.request("GET", "/v1/models")
            name = dict(field[0] for field in connection.sock.getpeercert()["subject"])["commonName"]
            self.assertEqual(connection.getresponse().status, 200)
            return name

        with serve("--tls-cert", file["server.pem"], "--tls-key", file["server.key"]) as server:
            port = http_port(server)
            self.assertEqual(ask(), "server")
            with self.assertRaises(ssl.SSLCertVerificationError):
                ask(ca="other_ca.pem")
            with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
                plain.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertNotIn(b"HTTP/1.1 200", plain.recv(1000))
            for version in ("-tls1_1", "-tls1_2", "-tls1_3"):
                shaken = subprocess.run(
                    ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", version,
                     "-cipher", "DEFAULT@SECLEVEL=0"], stdin=subprocess.DEVNULL,
                    capture_output=True, text=True, timeout=20)
                self.assertEqual("BEGIN CERTIFICATE" in shaken.stdout, version != "-tls1_1")
            for end in ("pem", "key"):
                os.replace(file[f"renewed.{end}"], file[f"server.{end}"])
            server.process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + 20
            while ask() != "renewed":
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)
        with serve("--tls-cert", file["server.pem"], "--tls-key", file["server.key"],
                   "--tls-client-ca", file["ca.pem"]) as server:
            port = http_port(server)
            self.assertEqual(ask(identity="client"), "renewed")
            with self.assertRaises((ssl.SSLError, OSError)):
                ask()
            # A client may resume the session of an earlier connection.
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                context = ssl.create_default_context(cafile=file["ca.pem"])
                context.load_cert_chain(file["client.pem"], file["client.key"])
                context.minimum_version = context.maximum_version = version
                session = None
                for resumed in (False, True):
                    with socket.create_connection(("127.0.0.1", port), timeout=10) as peer, \
                            context.wrap_socket(peer, server_hostname="localhost", session=session) as tls:
                        tls.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
                        self.assertTrue(tls.recv(1000).startswith(b"HTTP/1.1 200"))
                        self.assertEqual(tls.session_reused, resumed)
                        session = tls.session

    def test_slow_and_halved_clients(self):
        with serve("--handshake-timeout", "1s") as server:
            port = http_port(server)
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            begun = time.monotonic()
            with socket.create_connection(("127.0.0.1", port), timeout=10) as slow:
                try:
                    # sending a byte now and then does not extend the time
                    while time.monotonic() - begun < 8:
                        slow.sendall(b"x")
                        slow.settimeout(0.1)
                        try:
                            if slow.recv(100) == b"":
                                break
                        except TimeoutError:
                            pass
                except (BrokenPipeError, ConnectionResetError):
                    pass
            self.assertLess(time.monotonic() - begun, 5)
            body = json.dumps({"prompt": "x", "max_tokens": 4000000000, "stream": True,
                               "ignore_eos": True}).encode()
            whole = (head + b"Content-Type: application/json\r\n" +
                     b"Content-Length: %d\r\n\r\n" % len(body) + body)
            for sent in (b"", head, whole[:-5], whole):
                with socket.create_connection(("127.0.0.1", port), timeout=10) as peer:
                    peer.sendall(sent)
                    peer.shutdown(socket.SHUT_WR)
                    while peer.recv(65536):
                        pass
            watcher = self.client(port)
            wait_for(lambda: not int(watcher.get("/ovq/v1/status")[1].get("requestsRunning", 0)), "no request runs", 10)
            # The server notices at its own time that the others are gone.
            wait_for(lambda: re.search(r"ovq_http_connections\{[^}]*\} 1\n", server.metrics()),
                     "the watcher's connection alone", 10)

    def test_idle_connections_keep_neither_bodies_nor_answers(self):
        with serve() as server, contextlib.ExitStack() as stack:
            port, before = http_port(server), server.resident_bytes()
            for _ in range(20):
                peer = stack.enter_context(contextlib.closing(HttpClient(port)))
                status, answer, _ = peer.post("/tokenize", {"prompt": "x" * 1000000})
                self.assertEqual((status, answer["count"]), (200, 1000000))  # of 4 MB
            self.assertLess(server.resident_bytes() - before, 60 << 20)

    def test_a_request_that_comes_in_during_a_drain_is_refused(self):
        with serve("--drain-notice", "0s", "--drain-timeout", "5s") as server:
            port = http_port(server)
            head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n")
            running = json.dumps({"prompt": "x", "max_tokens": 4000000000, "stream": True,
                                  "ignore_eos": True}).encode()
            with socket.create_connection(("127.0.0.1", port), timeout=10) as stream, \
                    socket.create_connection(("127.0.0.1", port), timeout=10) as upload:
                upload.sendall(head % 15 + b'{"prompt"')
                stream.sendall(head % len(running) + running)
                self.assertTrue(stream.recv(1000).startswith(b"HTTP/1.1 200"))
                server.terminate()
                wait_for(lambda: re.search(r"ovq_draining\{[^}]*\} 1\n", server.metrics()),
                         "the drain begins", 10)
                wait_for(lambda: refuses(port), "requests are refused")
                time.sleep(0.2)  # connections without a request end
                upload.sendall(b':"hi"}')
                self.assertTrue(upload.recv(1000).startswith(b"HTTP/1.1 503"))
            self.assertEqual(server.wait(), 0)

    def test_a_drain_waits_for_bodies_and_for_answers_that_are_being_sent(self):
        with serve("--drain-notice", "0s", "--drain-timeout", "10s") as server, socket.socket() as slow:
            head = (b"POST %s HTTP/1.1\r\nHost: localhost\r\n"
                    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n")
            text = json.dumps({"prompt": "x" * 1000000}).encode()
            address = ("127.0.0.1", http_port(server))
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.settimeout(10)
            slow.connect(address)
            slow.sendall(head % (b"/tokenize", len(text)) + text)
            answer = slow.recv(1000)  # of 4 MB, more than the sockets hold
            with socket.create_connection(address, timeout=10) as upload:
                upload.sendall(head % (b"/v1/completions", 15) + b'{"prompt"')
                self.assertEqual(self.client(address[1]).get("/health")[0], 200)  # the header is there
                server.terminate()
                wait_for(lambda: refuses(address[1]), "requests are refused")
                time.sleep(0.2)  # a drain that waits for neither ends
                upload.sendall(b':"hi"}')
                self.assertTrue(upload.recv(1000).startswith(b"HTTP/1.1 503"))
            while part := slow.recv(1 << 20):
                answer += part
            self.assertEqual(json.loads(answer.partition(b"\r\n\r\n")[2])["count"], 1000000)
            self.assertEqual(server.wait(), 0)

    def test_a_drain_ends_in_its_time_whoever_is_connected(self):
        with serve("--drain-notice", "0s", "--drain-timeout", "1s") as server:
            port = http_port(server)
            request = json.dumps({"prompt": "x", "max_tokens": 4000000000, "stream": True,
                                  "ignore_eos": True}).encode()
            head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(request))
            peers = []
            for sent in (b"", b"GET /v1", head, head + request[:5], head + request,
                         b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"):
                for _ in range(5):
                    peers.append(socket.create_connection(("127.0.0.1", port), timeout=10))
                    self.addCleanup(peers[-1].close)
                    peers[-1].sendall(sent)  # the answer is never read
            watcher = self.client(port)
            while int(watcher.get("/ovq/v1/status")[1].get("requestsRunning", 0)) < 5:
                time.sleep(0.01)
            server.terminate()
            self.assertEqual(server.wait(20), 0)

    def test_drain(self):
        with serve("--drain-notice", "1s", "--drain-timeout", "1s") as server:
            port = http_port(server)
            chunks = []

            def read():
                client = HttpClient(port)
                chunks.extend(client.stream("/v1/completions", {
                    "prompt": "x", "max_tokens": 4000000000, "stream": True, "ignore_eos": True}))
                client.close()
            reader = threading.Thread(target=read)
            reader.start()
            watcher = self.client(port)
            while not int(watcher.get("/ovq/v1/status")[1].get("requestsRunning", 0)):
                time.sleep(0.01)
            server.terminate()
            statuses = set()
            while 503 not in statuses:
                statuses.add(watcher.send("GET", "/health").status)
                watcher.close()
            reader.join()
            self.assertEqual(chunks[-1]["error"]["status"], "UNAVAILABLE")
            self.assertEqual(server.wait(), 0)


if __name__ == "__main__":
    main()
