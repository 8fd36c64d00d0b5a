"""Unit, image, compose file and manifests: what must agree in them and with the rest of the repository."""

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

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NAME = {"app.kubernetes.io/name": "ovq-server"}
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def read(*path):
    with open(os.path.join(ROOT, *path)) as file:
        return file.read()


def conf(text):
    """{name: value} of a configuration file."""
    lines = [line.strip() for line in text.splitlines()]
    pairs = [line.split("=", 1) for line in lines if line and not line.startswith("#")]
    return {name.strip(): value.strip() for name, value in pairs}


def size(text):
    match = re.fullmatch(r"(\d+)([KMG])i?", text)
    return int(match[1]) * UNITS[match[2]]


def seconds(text):
    match = re.fullmatch(r"(\d+)s", text)
    return int(match[1])


def port(address):
    return int(address.rsplit(":", 1)[1])


def packages(part):
    """Of deploy/packages.txt."""
    text = read("deploy", "packages.txt").split(f"\n# part: {part},")[1].split("\n# part: ")[0]
    return [line for line in text.splitlines()[1:] if line and not line.startswith("#")]


class Kubernetes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = os.path.join("deploy", "kubernetes")
        cls.objects = {}
        for name in sorted(os.listdir(os.path.join(ROOT, folder))):
            if name.endswith(".yaml"):
                for item in yaml.safe_load_all(read(folder, name)):
                    cls.objects[item["kind"], item["metadata"]["name"]] = item
        cls.workload = cls.objects["StatefulSet", "ovq-server"]["spec"]
        cls.pod = cls.workload["template"]["spec"]
        (cls.container,) = cls.pod["containers"]
        cls.conf = conf(cls.objects["ConfigMap", "ovq-server"]["data"]["ovq-server.conf"])
        cls.ports = {item["name"]: item["containerPort"] for item in cls.container["ports"]}

    def test_ports_are_those_of_the_configuration(self):
        self.assertEqual(self.ports["grpc"], port(self.conf["listen"]))
        self.assertEqual(self.ports["metrics"], port(self.conf["metrics-address"]))
        for kind in ("startup", "liveness", "readiness"):
            self.assertEqual(self.container[kind + "Probe"]["grpc"]["port"], self.ports["grpc"])
        for service in ("ovq-server", "ovq-server-pods"):
            for item in self.objects["Service", service]["spec"]["ports"]:
                self.assertEqual(item["port"], self.ports[item["targetPort"]])

    def test_probes_ask_for_services_that_exist(self):
        services = re.findall(r"^service (\w+)", read("proto", "ovq", "v1", "inference.proto"),
                              re.MULTILINE)
        known = {""} | {f"ovq.v1.{service}" for service in services}
        for kind in ("startup", "liveness", "readiness"):
            self.assertIn(self.container[kind + "Probe"]["grpc"].get("service", ""), known)

    def test_a_drain_has_the_time_it_needs(self):
        command = self.container["lifecycle"]["preStop"]["exec"]["command"]
        self.assertEqual(command[0], "sleep")
        needed = int(command[1]) + seconds(self.conf["drain-timeout"])
        self.assertGreaterEqual(self.pod["terminationGracePeriodSeconds"], needed + 5)

    def test_memory_holds_the_states_and_more(self):
        limits = self.container["resources"]
        self.assertEqual(limits["limits"]["memory"], limits["requests"]["memory"])
        self.assertGreater(size(limits["limits"]["memory"]), size(self.conf["state-memory"]) + (1 << 30))

    def test_labels_select(self):
        labels = self.workload["template"]["metadata"]["labels"]
        self.assertEqual(self.workload["selector"]["matchLabels"], NAME)
        self.assertEqual(self.objects["PodDisruptionBudget", "ovq-server"]["spec"]["selector"],
                         {"matchLabels": NAME})
        self.assertLessEqual(NAME.items(), labels.items())
        self.assertEqual(self.workload["serviceName"], "ovq-server-pods")
        for service in ("ovq-server", "ovq-server-pods"):
            self.assertEqual(self.objects["Service", service]["spec"]["selector"], NAME)
        self.assertEqual(self.objects["Service", "ovq-server-pods"]["spec"]["clusterIP"], "None")

    def test_monitor_selects_one_service_that_has_its_port(self):
        spec = self.objects["ServiceMonitor", "ovq-server"]["spec"]
        absent = [rule["key"] for rule in spec["selector"]["matchExpressions"]
                  if rule["operator"] == "DoesNotExist"]
        chosen = [item for (kind, _), item in self.objects.items() if kind == "Service"
                  and spec["selector"]["matchLabels"].items() <= item["metadata"]["labels"].items()
                  and not set(absent) & set(item["metadata"]["labels"])]
        self.assertEqual(len(chosen), 1)
        self.assertIn(spec["endpoints"][0]["port"], [p["name"] for p in chosen[0]["spec"]["ports"]])
        # Rules and dashboard look for this job.
        self.assertEqual(chosen[0]["metadata"]["labels"][spec["jobLabel"]], "ovq-server")

    def test_tokens_come_from_a_secret(self):
        mounts = {mount["name"]: mount for mount in self.container["volumeMounts"]}
        (volume,) = [item for item in self.pod["volumes"] if "secret" in item]
        self.assertFalse(volume["secret"].get("optional", False))
        self.assertEqual(os.path.dirname(self.conf["tenants"]), mounts[volume["name"]]["mountPath"])
        self.assertIn(f"create secret generic {volume['secret']['secretName']} "
                      f"--from-file={os.path.basename(self.conf['tenants'])}=",
                      read("docs", "operations.md"))

    def test_only_clients_and_prometheus_reach_the_pods(self):
        spec = self.objects["NetworkPolicy", "ovq-server"]["spec"]
        self.assertEqual(spec["podSelector"], {"matchLabels": NAME})
        self.assertEqual(spec["policyTypes"], ["Ingress", "Egress"])
        self.assertNotIn("egress", spec)  # none
        reached = {item["port"] for rule in spec["ingress"] for item in rule["ports"]}
        self.assertEqual(reached, set(self.ports))
        for rule in spec["ingress"]:
            self.assertTrue(rule["from"])

    def test_configuration_is_mounted_where_it_is_read(self):
        mount = self.container["volumeMounts"][0]
        volume = self.pod["volumes"][0]
        self.assertEqual(mount["name"], volume["name"])
        self.assertIn(("ConfigMap", volume["configMap"]["name"]), self.objects)
        path = self.container["args"][self.container["args"].index("--config") + 1]
        self.assertEqual(path, os.path.join(mount["mountPath"], "ovq-server.conf"))

    def test_proxies_reach_the_pods(self):
        target = f"ovq-server-pods:{self.ports['grpc']}"
        self.assertIn(target, read("deploy", "kubernetes", "affinity", "haproxy.cfg"))
        envoy = yaml.safe_load(read("deploy", "kubernetes", "affinity", "envoy.yaml"))
        (cluster,) = envoy["static_resources"]["clusters"]
        (locality,) = cluster["load_assignment"]["endpoints"]
        address = locality["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
        self.assertEqual(f"{address['address']}:{address['port_value']}", target)


class Systemd(unittest.TestCase):
    def setUp(self):
        self.text = read("deploy", "systemd", "ovq-server.service")
        self.unit = dict(re.findall(r"^(\w+)=(.*)$", self.text, re.MULTILINE))

    def test_a_drain_has_the_time_it_needs(self):
        drain = conf(read("deploy", "systemd", "ovq-server.conf"))["drain-timeout"]
        self.assertGreaterEqual(seconds(self.unit["TimeoutStopSec"]), seconds(drain) + 5)

    @unittest.skipIf(shutil.which("systemd-analyze") is None, "no systemd-analyze here")
    def test_systemd_accepts_it(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "ovq-server")
            shutil.copy("/bin/true", program)  # it has to exist
            path = os.path.join(folder, "ovq-server.service")
            with open(path, "w") as file:
                file.write(self.text.replace("/usr/local/bin/ovq-server", program))
            result = subprocess.run(["systemd-analyze", "verify", "--man=no", path], timeout=60,
                                    capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""))


class Image(unittest.TestCase):
    def setUp(self):
        text = re.sub(r"\\\n\s*", "", read("deploy", "docker", "Dockerfile"))
        self.build, self.run_stage = text.split("\nFROM ")[1:]

    def test_packages_are_the_parts_of_the_list(self):
        for stage, part in ((self.build, "build"), (self.run_stage, "run")):
            self.assertRegex(stage, rf"\nRUN \S*install_packages.sh --part {part}\b")
            self.assertNotIn("apt-get install", stage)
            self.assertGreater(len(packages(part)), 5)

    def test_build_commands_are_those_of_the_readme(self):
        (command,) = re.findall(r"^RUN (cmake --preset .*)$", self.build, re.MULTILINE)
        command = command.replace("${PRESET}", "cpu")
        self.assertIn(f"\n    {command}\n", read("docs", "operations.md"))
        (readme,) = re.findall(r"^    (cmake --preset cpu && .*)$", read("README.md"), re.MULTILINE)
        self.assertTrue(command.startswith(readme + " --target "), (command, readme))

    def test_presets_exist(self):
        presets = {item["name"] for item in json.loads(read("CMakePresets.json"))["buildPresets"]}
        used = set(re.findall(r"PRESET=(\w+)", read("deploy", "docker", "Dockerfile")))
        self.assertEqual(used, {"cpu", "cuda"})
        self.assertLessEqual(used, presets)

    def test_what_is_copied_from_the_repository_exists(self):
        for stage in (self.build, self.run_stage):
            copied = re.findall(r"^COPY (?!--from)(.*) \S+$", stage, re.MULTILINE)
            self.assertTrue(copied)
            for sources in copied:
                for source in sources.split():
                    self.assertTrue(os.path.exists(os.path.join(ROOT, source)), source)


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
            mounts = [v.split(":")[0] for v in self.services[name]["volumes"] if v.startswith(".")]
            self.assertTrue(mounts)
            for source in mounts:
                self.assertTrue(os.path.isdir(os.path.join(ROOT, "deploy", source)), source)

    def test_grafana_finds_prometheus_and_the_dashboard(self):
        folder = ("deploy", "grafana", "provisioning")
        (source,) = yaml.safe_load(read(*folder, "datasources", "prometheus.yaml"))["datasources"]
        listens = [argument for argument in self.services["prometheus"]["command"]
                   if argument.startswith("--web.listen-address=")]
        self.assertEqual(port(source["url"]), port(listens[0]))
        interval = yaml.safe_load(read("deploy", "prometheus", "prometheus.yml"))["global"]
        self.assertEqual(source["jsonData"]["timeInterval"], interval["scrape_interval"])
        (provider,) = yaml.safe_load(read(*folder, "dashboards", "ovq.yaml"))["providers"]
        mounts = dict(v.split(":")[1::-1] for v in self.services["grafana"]["volumes"])
        self.assertEqual(os.listdir(os.path.join(ROOT, "deploy", mounts[provider["options"]["path"]])),
                         ["ovq-server.json"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
