"""Unit, image and compose file are consistent with each other and with the rest of the repository.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import yaml
except ImportError as error:
    print(f"SKIPPED: {error}; install python3-yaml")
    sys.exit(0)

from deploy_files import ROOT, port, read, seconds


def conf(text):
    """Parses a configuration file: {name: value}."""
    lines = [line.strip() for line in text.splitlines()]
    pairs = [line.split("=", 1) for line in lines if line and not line.startswith("#")]
    return {name.strip(): value.strip() for name, value in pairs}


def packages(part):
    """Returns the packages of one part of deploy/packages.txt."""
    text = read("deploy", "packages.txt").split(f"\n# part: {part},")[1].split("\n# part: ")[0]
    return [line for line in text.splitlines()[1:] if line and not line.startswith("#")]


class Systemd(unittest.TestCase):
    def setUp(self):
        self.text = read("deploy", "systemd", "ovq-server.service")
        self.unit = dict(re.findall(r"^(\w+)=(.*)$", self.text, re.MULTILINE))

    def test_a_drain_has_the_time_it_needs(self):
        drain = conf(read("deploy", "systemd", "ovq-server.conf"))["drain-timeout"]
        self.assertGreaterEqual(seconds(self.unit["TimeoutStopSec"]), seconds(drain) + 5)

    def test_invalid_options_are_not_tried_again(self):
        # The status that prevents a restart is that of the main process alone.
        self.assertEqual(self.unit["RestartPreventExitStatus"], "2")
        self.assertEqual([name for name in self.unit if name.startswith("Exec")],
                         ["ExecStart", "ExecReload"])

    @unittest.skipIf(shutil.which("systemd-analyze") is None, "no systemd-analyze here")
    def test_systemd_accepts_it(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "ovq-server")
            shutil.copy("/bin/true", program)  # the program must exist
            path = os.path.join(folder, "ovq-server.service")
            with open(path, "w") as file:
                file.write(self.text.replace("/usr/local/bin/ovq-server", program))
            result = subprocess.run(["systemd-analyze", "verify", "--man=no", path], timeout=60,
                                    capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""))


class Image(unittest.TestCase):
    def setUp(self):
        text = re.sub(r"\\\n\s*", "", read("deploy", "docker", "Dockerfile"))
        self.stages = {re.match(r"\S+ AS (\S+)\n", stage)[1]: stage for stage in text.split("\nFROM ")[1:]}

    def test_packages_are_the_parts_of_the_list(self):
        for name, part in (("source", "build"), ("run", "run")):
            stage = self.stages[name]
            self.assertRegex(stage, rf"\nRUN \S*install_packages.sh --part {part}\b")
            self.assertNotIn("apt-get install", stage)
            self.assertGreater(len(packages(part)), 5)

    def test_build_commands_are_those_of_the_readme(self):
        (command,) = re.findall(r"^RUN (cmake --preset .*)$", self.stages["build-cpu"], re.MULTILINE)
        self.assertIn(command.replace("preset cpu", "preset cuda"), self.stages["build-cuda"])
        command = command.replace(" -D BUILD_TESTING=OFF", "")
        self.assertIn(f"\n    {command}\n", read("docs", "operations.md"))
        (readme,) = re.findall(r"^    (cmake --preset cpu && .*)$", read("README.md"), re.MULTILINE)
        self.assertTrue(command.startswith(readme + " --target "), (command, readme))

    def test_texts_tests_and_models_come_after_what_is_compiled(self):
        before = self.stages["source"] + self.stages["build-cpu"].split("\nRUN cmake --preset")[0]
        copied = " ".join(re.findall(r"^COPY (.*) \S+$", before, re.MULTILINE)).split()
        self.assertLessEqual({"base", "kernels", "model", "server", "clients", "proto"}, set(copied))
        self.assertEqual([name for name in copied if name.split("/")[0] in
                          (".", "docs", "README.md", "tests", "models", "training")], [])
        ignored = read("deploy", "docker", "Dockerfile.dockerignore").split()
        self.assertLessEqual({"**/*.md", "clients/python", "docs", "tests"}, set(ignored))

    def test_bases_are_pinned(self):
        bases = dict(re.findall(r"^ARG (\w+)=(\S+)$", read("deploy", "docker", "Dockerfile"), re.MULTILINE))
        for base in bases.values():
            self.assertRegex(base, r"^[\w/]+:\d+\.\d+\S*@sha256:[0-9a-f]{64}$")
        begun = {stage.split()[0] for stage in self.stages.values()}
        self.assertEqual(begun - set(self.stages), {"${%s}" % name for name in bases})

    def test_targets_are_those_that_the_texts_name(self):
        self.assertEqual(list(self.stages)[-1], "cpu")  # without --target
        presets = {item["name"] for item in json.loads(read("CMakePresets.json"))["buildPresets"]}
        for target in ("cpu", "cuda"):
            self.assertIn(target, presets)
            self.assertRegex(self.stages[target], rf"^run AS {target}\n(.*\n)*COPY --from=build-{target} ")
            # A stage does not depend on the other target's build: a build for CPUs pulls no
            # toolkit.
            other = {"cpu": "cuda", "cuda": "cpu"}[target]
            self.assertNotIn(other, self.stages[target].replace(f"AS {target}", ""))
        self.assertIn("--target cuda", read("docs", "operations.md"))

    def test_what_is_copied_from_the_repository_exists(self):
        for stage in self.stages.values():
            for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", stage, re.MULTILINE):
                for source in sources.split():
                    self.assertTrue(os.path.exists(os.path.join(ROOT, source)), source)
        self.assertEqual({name for stage in self.stages.values()
                          for name in re.findall(r"^COPY --from=(\S+)", stage, re.MULTILINE)},
                         {"toolkit", "build-cpu", "build-cuda"})


class Compose(unittest.TestCase):
    def setUp(self):
        self.services = yaml.safe_load(read("deploy", "compose.yaml"))["services"]

    def test_a_drain_has_the_time_it_needs(self):
        server = self.services["server"]
        drain = server["command"][server["command"].index("--drain-timeout") + 1]
        self.assertGreaterEqual(seconds(server["stop_grace_period"]), seconds(drain) + 5)

    def test_what_is_mounted_exists(self):
        self.assertTrue(os.path.exists(os.path.join(
            ROOT, "deploy", self.services["server"]["build"]["context"],
            self.services["server"]["build"]["dockerfile"])))
        for name in ("prometheus", "grafana"):
            self.assertNotIn("network_mode", self.services[name])  # would end with the server
            mounts = [v.split(":")[0] for v in self.services[name]["volumes"] if v.startswith(".")]
            self.assertTrue(mounts)
            for source in mounts:
                self.assertTrue(os.path.isdir(os.path.join(ROOT, "deploy", source)), source)

    def test_grafana_finds_prometheus_and_the_dashboard(self):
        folder = ("deploy", "grafana", "provisioning")
        (source,) = yaml.safe_load(read(*folder, "datasources", "prometheus.yaml"))["datasources"]
        listens = [argument for argument in self.services["prometheus"]["command"]
                   if argument.startswith("--web.listen-address=")]
        self.assertEqual(source["url"], f"http://prometheus:{port(listens[0])}")
        plain, here = (yaml.safe_load(read("deploy", "prometheus", name))
                       for name in ("prometheus.yml", "compose.yml"))
        interval = here["global"]
        # The configuration differs only in the server's address.
        command = self.services["server"]["command"]
        metrics = port(command[command.index("--metrics-address") + 1])
        (job,) = [item for item in here["scrape_configs"] if item["job_name"] == "ovq-server"]
        self.assertEqual(job["static_configs"], [{"targets": [f"server:{metrics}"]}])
        job["static_configs"] = plain["scrape_configs"][0]["static_configs"]
        self.assertEqual(here, plain)
        self.assertEqual(source["jsonData"]["timeInterval"], interval["scrape_interval"])
        (provider,) = yaml.safe_load(read(*folder, "dashboards", "ovq.yaml"))["providers"]
        mounts = dict(v.split(":")[1::-1] for v in self.services["grafana"]["volumes"])
        self.assertEqual(os.listdir(os.path.join(ROOT, "deploy", mounts[provider["options"]["path"]])),
                         ["ovq-server.json"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
