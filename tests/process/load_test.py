"""ovq-load against the real server.

usage: load_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import csv
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

try:
    import grpc
except ImportError as error:
    print(f"SKIPPED: {error}; install python3-grpcio")
    sys.exit(0)

from free_port import free_port
from load_process import WithLoad
from server_process import ServerProcess, wait_for
from tiny_model import write_tiny_model

BIN = None

SUMMARIES = [f"{statistic}_{metric}_ms" for metric in ("ttft", "tpot", "itl", "e2el")
             for statistic in ("mean", "median", "std", "p50", "p90", "p95", "p99", "max")]
TOTALS = ["duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
          "request_throughput", "request_goodput", "output_throughput", "total_token_throughput"]
DETAILS = ["input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "errors"]


def scrape(server):
    """Returns every sample of /metrics by name and labels, without the model's label."""
    text = server.metrics()
    samples = {}
    for name, labels, value in re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE):
        kept = [label for label in labels.split(",") if label and not label.startswith("model=")]
        samples[name + ("{" + ",".join(kept) + "}" if kept else "")] = float(value)
    return samples


def scrape_after(server, generated):
    """Returns the samples once the server has counted so many generated tokens: the engine's figures
    are those of an iteration that has ended, a little after its answers."""
    wait_for(lambda: scrape(server)["ovq_generated_tokens_total"] >= generated, "all is counted")
    return scrape(server)


class TinyServer(WithLoad):
    """Tests with one server and a tiny model."""

    @classmethod
    def setUpClass(cls):
        cls.model = tempfile.mkdtemp()
        write_tiny_model(cls.model)
        cls.server = ServerProcess(os.path.join(BIN, "ovq-server"), cls.model, "--threads", "1")

    @classmethod
    def tearDownClass(cls):
        cls.server.kill()
        shutil.rmtree(cls.model)

    def load(self, *flags, expect=0):
        return self.run_load(self.server.address, *flags, expect=expect)

    def assert_no_session_is_left(self):
        # The engine's figures are those of an iteration that has ended.
        wait_for(lambda: scrape(self.server)['ovq_sessions{state="idle"}'] == 0, "no session is left")

    def test_closed_loop_counts_exactly(self):
        # No other test's tokens are counted late in this server's figures.
        server = ServerProcess(os.path.join(BIN, "ovq-server"), self.model, "--threads", "1")
        self.addCleanup(server.kill)
        report, table, _ = self.run_load(server.address, "--concurrency=4", "--requests=30",
                                         "--input-length=20", "--output-length=7", "--detailed",
                                         "--goodput=e2e:600000")
        self.assertEqual((report["completed"], report["failed"]), (30, 0))
        self.assertEqual(report["total_input_tokens"], 30 * 20)
        self.assertEqual(report["total_output_tokens"], 30 * 7)
        figures = scrape_after(server, 30 * 7)
        for name, count in (("ovq_prompt_tokens_total", 600), ("ovq_generated_tokens_total", 210),
                            ('ovq_requests_total{code="OK",method="Generate"}', 30)):
            self.assertEqual(figures[name], count, name)
        for key in TOTALS + SUMMARIES:
            self.assertIsInstance(report[key], (int, float), key)
        for key in DETAILS:
            self.assertEqual(len(report[key]), 30, key)
        self.assertEqual({len(gaps) for gaps in report["itls"]}, {6})
        self.assertEqual(report["ovq"]["max_in_flight"], 4)
        self.assertAlmostEqual(report["request_goodput"], report["request_throughput"])
        self.assertAlmostEqual(report["mean_ttft_ms"], 1e3 * sum(report["ttfts"]) / 30, places=6)
        self.assertIn("time to first token", table)

    def test_poisson_and_gamma(self):
        for flags in (["--arrivals=poisson"], ["--arrivals=gamma", "--burstiness=0.5"]):
            report, _, _ = self.load("--rate=100", "--requests=40", "--input-length=uniform:5-30",
                                     "--output-length=lognormal:8:0.5", "--detailed", *flags)
            self.assertEqual((report["completed"], report["failed"]), (40, 0))
            self.assertTrue(all(5 <= length <= 30 for length in report["input_lens"]))
            gaps = [b - a for a, b in zip(report["start_times"], report["start_times"][1:])]
            self.assertGreater(max(gaps), 2 * min(gaps))  # not evenly spaced

    def test_same_seed_same_load(self):
        first, second = (self.load("--rate=200", "--requests=20", "--seed=5", "--detailed",
                                   "--output-length=uniform:1-9")[0] for _ in range(2))
        self.assertEqual(first["output_lens"], second["output_lens"])
        for a, b in zip(first["start_times"], second["start_times"]):
            self.assertAlmostEqual(a, b, places=6)

    def test_ramp(self):
        report, _, _ = self.load("--rate=50", "--arrivals=constant", "--ramp-up=1s",
                                 "--requests=50", "--output-length=2", "--detailed")
        # t^2 / 2 * 50 requests are due by t: the k-th at sqrt(k / 25), after the ramp 20 ms apart.
        starts = report["start_times"]
        self.assertAlmostEqual(starts[15] - starts[0], 0.8 - 0.2, places=5)
        self.assertAlmostEqual(starts[49] - starts[39], 0.2, places=5)

    def test_sweep(self):
        report, table, _ = self.load("--sweep", "--sweep-time=0s", "--sweep-levels=3", "--sweep-gain=0",
                                     "--requests=20", "--output-length=4")
        levels = report["ovq"]["sweep"]
        self.assertIn(len(levels), (2, 3))
        self.assertEqual([level["load"] for level in levels], [1, 2, 4][:len(levels)])
        self.assertIn(levels[-1]["verdict"], ("saturated", "last level"))
        best = max(levels, key=lambda level: level["output_throughput"])
        self.assertEqual(report["output_throughput"], best["output_throughput"])
        self.assertEqual(report["ovq"]["best_load"], best["load"])
        self.assertIn(levels[-1]["verdict"], table)

    def test_a_sweep_goes_beyond_its_first_users(self):
        report, _, _ = self.load("--sweep", "--concurrency=2", "--sweep-time=0s", "--sweep-levels=2",
                                 "--sweep-gain=0", "--requests=40", "--output-length=40")
        in_flight = [level["ovq"]["max_in_flight"] for level in report["ovq"]["sweep"]]
        self.assertEqual(in_flight, [2, 4])

    def test_a_level_that_is_too_short_says_nothing(self):
        report, table, _ = self.load("--sweep", "--requests=10", "--output-length=2")
        levels = report["ovq"]["sweep"]
        self.assertEqual([level["verdict"] for level in levels], ["too short to tell"])
        self.assertIsNone(report["ovq"]["best_load"])
        self.assertIn("No level lasted --sweep-time", table)

    def test_the_report_says_how_it_was_made(self):
        page = self.path("setup.html")
        report, _, _ = self.load("--rate=50", "--arrivals=gamma", "--burstiness=0.5", "--requests=9",
                                 "--input-length=uniform:3-5", "--output-length=3", "--detailed",
                                 "--goodput=ttft:500,tpot:50", "--output-html", page)
        own, options = report["ovq"], report["ovq"]["options"]
        self.assertRegex(own["command_line"], r"^\S*ovq-load .*--arrivals=gamma .*--output-html \S+$")
        self.assertIn(os.uname().nodename, own["host"])
        self.assertEqual({name: options[name] for name in (
            "input-length", "output-length", "arrivals", "burstiness", "goodput", "grace")},
            {"input-length": "uniform:3-5", "output-length": "3", "arrivals": "gamma",
             "burstiness": "0.5", "goodput": "ttft:500,tpot:50", "grace": options["grace"]})
        self.assertEqual(len(report["queue_times"]), 9)
        self.assertTrue(all(time >= 0 for time in report["queue_times"]))
        with open(page, encoding="utf-8") as file:
            text = file.read()
        for said in ("command line", "--arrivals=gamma", "uniform:3-5", "ttft:500,tpot:50"):
            self.assertIn(said, text)

    def test_sweep_ends_where_goodput_breaks(self):
        report, _, _ = self.load("--sweep", "--sweep-time=0s", "--rate=50", "--requests=10", "--output-length=2",
                                 "--goodput=ttft:0.0001")
        levels = report["ovq"]["sweep"]
        self.assertEqual([level["verdict"] for level in levels], ["goodput broken"])
        self.assertIsNone(report["ovq"]["best_load"])

    def test_trace(self):
        lines = [{"timestamp": 0, "input_length": 9, "output_length": 3, "hash_ids": [0]},
                 {"timestamp": 100, "input_length": 5, "output_length": 2, "session": "a"},
                 {"timestamp_s": 0.15, "input_length": 6, "output_length": 4, "session": "a"}]
        file = self.write("trace.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        report, _, _ = self.load("--trace", file, "--detailed")
        self.assertEqual(report["output_lens"], [3, 2, 4])
        self.assertEqual(report["input_lens"], [9, 5, 6])
        for start, due in zip(report["start_times"], (0, 0.1, 0.15)):
            self.assertAlmostEqual(start, due, places=5)
        self.assert_no_session_is_left()

    def test_wrong_trace_names_its_line(self):
        file = self.write("trace.jsonl", '{"timestamp": 0, "input_length": 1}\n')
        _, _, stderr = self.load("--trace", file, expect=2)
        self.assertIn(f"{file}:1: output_length is missing", stderr)

    def test_sessions_of_several_turns(self):
        before = scrape(self.server)
        report, _, _ = self.load("--turns=3", "--think-time=5ms", "--concurrency=2",
                                 "--requests=11", "--input-length=10", "--output-length=4",
                                 "--max-centroids=32", "--warmup=2",
                                 "--output-csv", self.path("rows.csv"))
        after = scrape(self.server)
        self.assertEqual((report["completed"], report["failed"]), (11, 0))
        self.assertEqual(report["ovq"]["create_session_ms"]["count"], 4)
        created = 'ovq_requests_total{code="OK",method="CreateSession"}'
        self.assertEqual(after[created] - before[created], 4 + 1)  # and the warm-up's
        self.assert_no_session_is_left()
        with open(self.path("rows.csv"), encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), 11)
        for row in rows:  # every turn continues those before it: a session is one conversation
            self.assertEqual(int(row["position"]), (int(row["turn"]) + 1) * (10 + 4))

    def test_prompts_from_a_file(self):
        file = self.write("prompt.txt", "def main():\n    pass\n")
        report, _, _ = self.load("--prompt-file", file, "--requests=5", "--input-length=40",
                                 "--output-length=2", "--temperature=0")
        self.assertEqual(report["total_input_tokens"], 200)

    def test_html_is_whole_in_itself(self):
        page = self.path("page.html")
        self.load("--sweep", "--sweep-time=0s", "--sweep-levels=2", "--requests=10", "--output-length=3",
                  "--output-html", page)
        with open(page, encoding="utf-8") as file:
            text = file.read()
        # The page is valid XML, too.
        root = xml.etree.ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
        plots = [e for e in root.iter() if e.tag == "{http://www.w3.org/2000/svg}svg"]
        self.assertEqual(len(plots), 3 + 4 + 3)  # sweep, latencies, over time
        self.assertTrue(all(len(plot.findall(".//{*}polyline")) >= 1 for plot in plots))
        self.assertNotRegex(text, r"<script|<link|src=|href=|url\(|@import")

    def test_failures_are_counted_and_end_with_1(self):
        flags = ("--requests=3", "--max-centroids=2000000000")
        report, table, stderr = self.load(*flags, expect=1)
        self.assertEqual((report["completed"], report["failed"]), (0, 3))
        self.assertEqual(report["ovq"]["errors"]["INVALID_ARGUMENT"]["count"], 3)
        self.assertIn("3 x INVALID_ARGUMENT: max_centroids", table)
        self.assertIn("no request completed", stderr)

    def test_allowed_errors(self):
        # A million tokens take longer than a second.
        lines = [{"timestamp": 0, "input_length": 4, "output_length": n} for n in (1, 1_000_000)]
        file = self.write("trace.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        for flags, expect in (((), 1), (("--allow-errors",), 0)):
            report, _, _ = self.load("--trace", file, "--timeout=1s", *flags, expect=expect)
            self.assertEqual((report["completed"], report["failed"]), (1, 1))
            self.assertEqual(report["ovq"]["errors"]["DEADLINE_EXCEEDED"]["count"], 1)

    def test_interrupt_still_reports(self):
        before = scrape(self.server)['ovq_requests_total{code="OK",method="Generate"}']
        process = subprocess.Popen(
            self.command("--server", self.server.address, "--requests=1000000", "--duration=50s",
                         "--output-json", self.path("cut.json")),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            while scrape(self.server)['ovq_requests_total{code="OK",method="Generate"}'] <= before:
                self.assertIsNone(process.poll())
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=30)
        finally:
            process.kill()
        self.assertEqual(process.returncode, 130, stderr)
        self.assertRegex(stdout, r"interrupted +yes")
        with open(self.path("cut.json"), encoding="utf-8") as file:
            report = json.load(file)
        self.assertTrue(report["ovq"]["interrupted"])
        self.assertGreater(report["completed"], 0)

    def test_interrupt_before_the_first_request(self):
        silent = socket.create_server(("127.0.0.1", 0))  # accepts connections and never answers
        self.addCleanup(silent.close)
        process = subprocess.Popen(
            self.command("--server", f"127.0.0.1:{silent.getsockname()[1]}"), stderr=subprocess.PIPE)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        connection, _ = silent.accept()
        self.addCleanup(connection.close)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=10), 130)

    def test_progress_is_lines_where_there_is_no_terminal(self):
        process = subprocess.Popen(
            self.command("--server", self.server.address, "--requests=1000000", "--duration=50s",
                         "--output-length=1"),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            ready, _, _ = select.select([process.stderr], [], [], 30)
            self.assertTrue(ready)
            self.assertRegex(process.stderr.readline().decode(),
                             r"^load: \d+\.\d s: \d+ completed, 0 failed, \d+ in flight, ")
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)

    def test_usage(self):
        for flags, message in ((["--nonsense"], "unknown flag --nonsense"),
                               (["--rate=x"], "--rate: expected a number"),
                               (["--tls-ca=/does/not/exist"], "--tls-ca: /does/not/exist"),
                               (["--token-file=/does/not/exist"], "--token-file: /does/not/exist"),
                               (["--output-csv=/does/not/exist"], "--output-csv: /does/not/exist"),
                               (["--input-length=99999999"], "--input-length: expected")):
            _, stdout, stderr = self.load(*flags, expect=2)
            self.assertIn(message, stderr)
            self.assertEqual(stdout, "")
        help_text = subprocess.run(self.command("--help"), capture_output=True, text=True,
                                   timeout=10, check=True).stdout
        self.assertIn("--burstiness B", help_text)

    def test_no_server(self):
        _, _, stderr = self.run_load("127.0.0.1:1", expect=1)
        self.assertIn("127.0.0.1:1: UNAVAILABLE", stderr)


class Agreement(WithLoad):
    """The client's means agree with the server's own histograms of the same requests.

    The two differ by the time between the clocks: sending the prompt and waking up for a message,
    well under a millisecond on an idle machine and a few on a busy one. So the measured times must
    be long: the shipped model on one thread, prompts of 4,096 tokens (hundreds of milliseconds to
    the first token) and answers of 1,000 (whose first and last messages are delayed about equally; the
    mean gap is the time between those two divided by 999). A busy machine slows both measurements
    equally.
    """

    def test_means_agree_within_5_percent_and_counts_exactly(self):
        requests, prompt, answer = 10, 4096, 1000
        model = os.path.join(ROOT, "models", "python-bytes")
        with ServerProcess(os.path.join(BIN, "ovq-server"), model, "--threads", "1") as server:
            # Warms connections, pages and caches before the first scrape.
            self.run_load(server.address, "--requests=2", "--input-length=256", "--output-length=8")
            before = scrape_after(server, 2 * 8)
            report, table, _ = self.run_load(
                server.address, "--concurrency=2", f"--requests={requests}",
                f"--input-length={prompt}", f"--output-length={answer}", "--seed=4")
            after = scrape_after(server, 2 * 8 + requests * answer)
        self.assertEqual((report["completed"], report["failed"]), (requests, 0))

        def delta(name):
            return after[name] - before[name]

        self.assertEqual(delta("ovq_prompt_tokens_total"), report["total_input_tokens"])
        self.assertEqual(delta("ovq_generated_tokens_total"), report["total_output_tokens"])
        self.assertEqual(report["total_output_tokens"], requests * answer)
        for stem, labels, key, count in (
                ("ovq_time_to_first_token_seconds", "", "mean_ttft_ms", requests),
                ("ovq_inter_token_latency_seconds", "", "mean_itl_ms", requests * (answer - 1)),
                ("ovq_request_duration_seconds", '{method="Generate"}', "mean_e2el_ms", requests)):
            with self.subTest(stem):
                self.assertEqual(delta(f"{stem}_count{labels}"), count)
                server_ms = 1e3 * delta(f"{stem}_sum{labels}") / count
                print(f"{stem}: server {server_ms:.3f} ms, client {report[key]:.3f} ms")
                self.assertLess(abs(report[key] - server_ms), 0.05 * server_ms, table)


class Restarted(WithLoad):
    """A server that is killed and restarted while sessions are in use."""

    def setUp(self):
        super().setUp()
        self.model = write_tiny_model(self.path("tiny"))

    def start(self, port, *flags):
        server = ServerProcess(os.path.join(BIN, "ovq-server"), self.model, "--threads", "1", *flags, port=port)
        self.addCleanup(server.kill)
        return server

    def load_over_a_kill(self, *server_flags):
        """Returns (exit status, the JSON report)."""
        server = self.start(free_port(), *server_flags)
        run = subprocess.Popen(
            self.command("--server", server.address, "--concurrency=4", "--turns=20", "--requests=600", "--quiet",
                         "--input-length=10", "--output-length=10", "--outlast=30s",
                         "--output-json", self.path("report.json")),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(run.kill)
        while scrape(server)["ovq_generated_tokens_total"] < 1000:
            self.assertIsNone(run.poll())
            time.sleep(0.01)
        server.kill()
        self.start(server.port, *server_flags)
        code = run.wait(60)
        with open(self.path("report.json")) as file:
            return code, json.load(file)

    def test_sessions_on_disk_outlast_it(self):
        code, report = self.load_over_a_kill("--session-dir", self.path("sessions"))
        self.assertEqual((code, report["completed"], report["failed"]), (0, 600, 0))
        self.assertGreaterEqual(report["ovq"]["outlasted"], 1)

    def test_others_are_missed(self):
        code, report = self.load_over_a_kill()
        self.assertEqual(code, 1)
        self.assertIn("NOT_FOUND", report["ovq"]["errors"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BIN = os.path.join(os.path.abspath(options.build), "bin")
    WithLoad.binary = os.path.join(BIN, "ovq-load")
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
