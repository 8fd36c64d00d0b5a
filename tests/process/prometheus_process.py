"""Runs a real Prometheus with the repository's configuration and shorter intervals."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request

import yaml

from server_process import ROOT

WINDOW = "4s"  # replaces every rate window
FOLDER = os.path.join(ROOT, "deploy", "prometheus")


def quick(expression):
    """Shortens the windows of an expression and replaces Grafana's variables."""
    expression = re.sub(r"\$__rate_interval", WINDOW, expression)
    expression = re.sub(r"\$(model|instance)", ".*", expression)
    expression = re.sub(r"\[\d+[smhd]:\d+[smhd]\]", f"[{WINDOW}:1s]", expression)
    return re.sub(r"\[\d+[smhd]\]", f"[{WINDOW}]", expression)


def _write_config(folder, targets):
    with open(os.path.join(FOLDER, "prometheus.yml")) as file:
        config = yaml.safe_load(file)
    config["global"] = {"scrape_interval": "500ms", "scrape_timeout": "500ms",
                        "evaluation_interval": "500ms"}
    for job in config["scrape_configs"]:
        if job["job_name"] in targets:
            job["static_configs"] = [{"targets": targets[job["job_name"]]}]
    os.mkdir(os.path.join(folder, "rules"))
    for name in os.listdir(os.path.join(FOLDER, "rules")):
        with open(os.path.join(FOLDER, "rules", name)) as file:
            text = file.read()
        with open(os.path.join(folder, "rules", name), "w") as file:
            file.write(quick(text))
    path = os.path.join(folder, "prometheus.yml")
    with open(path, "w") as file:
        yaml.safe_dump(config, file)
    return path


class PrometheusProcess:
    """with PrometheusProcess({job: [HOST:PORT]}) as prometheus: ..."""

    def __init__(self, targets):
        self._folder = tempfile.mkdtemp(prefix="ovq_prometheus_")
        config = _write_config(self._folder, targets)
        self._log = os.path.join(self._folder, "log")
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                ["prometheus", f"--config.file={config}",
                 f"--storage.tsdb.path={os.path.join(self._folder, 'data')}",
                 "--web.listen-address=127.0.0.1:0"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self._url = f"http://{self._await_address(timeout=30)}"
        except BaseException:
            self.kill()
            raise

    def _await_address(self, timeout):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self._process.poll() is None:
            with open(self._log) as file:
                text = file.read()
            found = re.search(r'msg="Listening on" address=(\S+)\n', text)
            if found is not None and "Server is ready to receive web requests" in text:
                return found.group(1)
            time.sleep(0.05)
        with open(self._log) as file:
            raise RuntimeError(f"Prometheus is not ready: {file.read()}")

    def get(self, path, **parameters):
        """Returns the data of an HTTP API response."""
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as response:
            return json.load(response)["data"]

    def query(self, expression):
        """Returns [(labels, value)] of an instant query."""
        return [(sample["metric"], float(sample["value"][1]))
                for sample in self.get("query", query=expression)["result"]]

    def kill(self):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
