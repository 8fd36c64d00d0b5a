"""Dashboard, recording rules and the page of metrics against a real server and a real Prometheus.

usage: dashboard_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import functools
import json
import math
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

try:
    import grpc  # noqa: F401
    import yaml
except ImportError as error:
    print(f"SKIPPED: {error}; install python3-grpcio python3-yaml")
    sys.exit(0)
for tool, package in (("protoc", "protobuf-compiler"), ("prometheus", "prometheus"),
                      ("openssl", "openssl")):
    if shutil.which(tool) is None:
        print(f"SKIPPED: no {tool}; install {package}")
        sys.exit(0)

from certificates import make_authority, make_certificate, write_tenants
from http_client import HttpClient, http_port
from prometheus_process import FOLDER as RULES
from prometheus_process import PrometheusProcess, quick
from server_process import ROOT, ServerProcess
from tiny_model import write_tiny_model

sys.path.insert(0, os.path.join(ROOT, "clients", "python"))
from ovq_client import Client, OvqError, Regex

BINARY = None
MAX_SESSIONS = 6

TOKEN = "alice-0123456789-abcdefghij"


class Load:
    """Runs every kind of work that the server knows, repeatedly until stopped."""

    def __init__(self, address, http, **credentials):
        self._address = address
        self._http = http
        self._credentials = credentials
        self._stop = threading.Event()
        self.rounds = 0
        self.error = None
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(2)]
        for thread in self._threads:
            thread.start()

    def _run(self, number):
        try:
            with Client(self._address, **self._credentials) as client:
                while not self._stop.is_set():
                    (self._answers if number else self._sessions)(client)
                    self.rounds += 1
        except Exception as error:  # the test reports it
            self.error = error

    def _answers(self, client):
        self._http.post("/v1/completions", {"prompt": "x", "max_tokens": 5})
        self._http.stream("/v1/completions", {"prompt": "x", "max_tokens": 5, "stream": True})
        list(client.generate("x" * 100, max_tokens=20, timeout=30))
        list(client.generate("z" * 300, max_tokens=2, cacheable=True, timeout=30))
        client.score("a text to score")
        for _ in range(2):  # compiled, then known
            form = Regex(f"a form [a-z]{{1,{9 + self.rounds}}}")
            list(client.generate("x", max_tokens=9, constraint=form, timeout=30))
        running = client.generate("y", max_tokens=100000, timeout=30)
        next(running)
        next(running)
        running.close()  # cancels
        self._fails(client.generate, "", max_tokens=5)

    def _sessions(self, client):
        made = [client.create_session(prompt="hello") for _ in range(MAX_SESSIONS - 2)]
        list(client.generate(" world", session_id=made[0].session_id, max_tokens=5, timeout=30))
        while self._opens(client, made):
            pass
        for session in made:
            client.delete_session(session.session_id)
        with client.chat() as chat:
            list(chat.send("hi", max_tokens=3))

    def _opens(self, client, made):
        """Opens one more session, at most MAX_SESSIONS in all; returns false if it is refused."""
        assert len(made) <= MAX_SESSIONS
        try:
            made.append(client.create_session())
            return True
        except OvqError as error:
            assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED, error
            return False

    def _fails(self, call, *arguments, **options):
        try:
            list(call(*arguments, **options))
        except OvqError as error:
            assert error.code == grpc.StatusCode.INVALID_ARGUMENT, error
            return
        raise AssertionError("a request that should fail did not")

    def stop(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(60)


def dashboard_queries():
    path = os.path.join(ROOT, "deploy", "grafana", "dashboards", "ovq-server.json")
    with open(path) as file:
        panels = json.load(file)["panels"]
    return [(f"panel {panel['title']!r}", target["expr"])
            for panel in panels for target in panel.get("targets", [])]


def recording_rules():
    with open(os.path.join(RULES, "rules", "recording.yml")) as file:
        groups = yaml.safe_load(file)["groups"]
    return [(f"rule {rule['record']}", rule["expr"]) for group in groups for rule in group["rules"]]


def documented_metrics():
    """Returns the names in the first column of the table in docs/serving.md."""
    with open(os.path.join(ROOT, "docs", "serving.md")) as file:
        section = file.read().split("\n## Metrics\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}


class Observed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="ovq_dashboard_test_")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        path = functools.partial(os.path.join, cls.folder)
        write_tiny_model(path("tiny"))
        make_authority(cls.folder)
        make_certificate(cls.folder, "server")
        write_tenants(path("tenants.json"), {"alice": TOKEN})
        cls.server = ServerProcess(BINARY, path("tiny"), "--state-memory", "64M",
                                   "--max-sessions", str(MAX_SESSIONS), "--threads", "1",
                                   "--tls-cert", path("server.pem"), "--tls-key", path("server.key"),
                                   "--tenants", path("tenants.json"),
                                   "--session-dir", path("sessions"),
                                   "--http-listen", "127.0.0.1:0",
                                   # no collector listens there
                                   "--trace-collector", "http://127.0.0.1:9/v1/traces")
        cls.addClassCleanup(cls.server.kill)
        with open(path("ca.pem"), "rb") as file:
            http = HttpClient(http_port(cls.server), {"Authorization": f"Bearer {TOKEN}"}, ca=file.name)
            cls.load = Load(cls.server.address, http, tls_ca=file.read(), token=TOKEN)
        cls.addClassCleanup(http.close)
        cls.addClassCleanup(cls.load.stop)
        while not cls.load.rounds and cls.load.error is None:
            time.sleep(0.05)
        target = re.search(r"//([^/]+)/", cls.server.metrics_url()).group(1)
        cls.prometheus = PrometheusProcess({"ovq-server": [target]})
        cls.addClassCleanup(cls.prometheus.kill)
        text = cls.server.metrics()
        samples = set(re.findall(r"^([a-z_]+)", text, re.MULTILINE))
        families = re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
        cls.exposed = {name for name in families if {name, f"{name}_count"} & samples}

    def await_data(self, queries, timeout):
        """Repeats queries until each has returned a finite number; returns the names of those that
        have not."""
        missing = [(name, quick(expr)) for name, expr in queries]
        deadline = time.monotonic() + timeout
        while missing and time.monotonic() < deadline:
            self.assertIsNone(self.load.error, self.load.error)
            missing = [(name, expr) for name, expr in missing
                       if not any(math.isfinite(value) for _, value in self.prometheus.query(expr))]
            time.sleep(0.2)
        return [f"{name}: {expr}" for name, expr in missing]

    def test_every_query_of_the_dashboard_has_data(self):
        queries = dashboard_queries()
        self.assertGreater(len(queries), 50)
        self.assertEqual(self.await_data(queries, timeout=30), [])

    def test_every_recording_rule_has_data_and_is_recorded(self):
        rules = recording_rules()
        self.assertGreater(len(rules), 20)
        self.assertEqual(self.await_data(rules, timeout=30), [])
        recorded = [(name, name.split()[1]) for name, _ in rules]
        self.assertEqual(self.await_data(recorded, timeout=30), [])

    def test_the_http_front_is_seen(self):
        answered = 'ovq_http_requests_total{route="/v1/completions",status="200"} > 1'
        taken = 'ovq_http_request_duration_seconds_count{route="/v1/completions"} > 1'
        queries = [(query, query) for query in (
            answered, taken, "ovq_http_connections >= 1", 'ovq_http_bytes_total{direction="sent"} > 500',
            'ovq_http_bytes_total{direction="received"} > 100')]
        self.assertEqual(self.await_data(queries, timeout=30), [])

    def test_no_rule_fails(self):
        self.await_data([("any", 'up{job="ovq-server"} == 1')], timeout=30)
        deadline = time.monotonic() + 30
        states = {"unknown"}
        while "unknown" in states and time.monotonic() < deadline:
            rules = [rule for group in self.prometheus.get("rules")["groups"]
                     for rule in group["rules"]]
            states = {rule["health"] for rule in rules}
        self.assertEqual([rule["lastError"] for rule in rules if rule["health"] != "ok"], [])
        self.assertGreater(sum(rule["type"] == "alerting" for rule in rules), 15)

    def test_variables_of_the_dashboard_have_values(self):
        self.await_data([("ready", "ovq_ready == 1")], timeout=30)
        target = re.search(r"//([^/]+)/", self.server.metrics_url()).group(1)
        for label, value in (("model", "tiny"), ("instance", target)):
            values = self.prometheus.get(f"label/{label}/values", **{"match[]": "ovq_ready"})
            self.assertEqual(values, [value])

    def test_documentation_names_what_the_server_exposes(self):
        documented = documented_metrics()
        self.assertGreater(len(documented), 40)
        self.assertEqual(sorted(self.exposed - documented), [], "not in docs/serving.md")
        self.assertEqual(sorted(documented - self.exposed), [], "not exposed")

    def test_rules_and_dashboard_ask_only_for_metrics_that_are_documented(self):
        with open(os.path.join(RULES, "rules", "alerts.yml")) as file:
            alerts = [(rule["alert"], rule["expr"]) for group in yaml.safe_load(file)["groups"]
                      for rule in group["rules"]]
        known = documented_metrics()
        for name, expr in dashboard_queries() + recording_rules() + alerts:
            # A name with colons is a recorded series, which is awaited above.
            for metric in re.findall(r"(?<![\w:])(?:ovq|process)_[a-z_]+(?![\w:])", expr):
                base = re.sub(r"_(bucket|sum|count)$", "", metric)
                self.assertTrue({metric, base} & known, f"{name}: {metric}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BINARY = os.path.join(os.path.abspath(options.build), "bin", "ovq-server")
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
