"""Tests of the chart in deploy/helm, and of the manifests in deploy/kubernetes, which are its
output for the default values.

go_template.py renders the chart; if Helm is installed, its output must be the same.

usage: kubernetes_test.py [--write] [unittest arguments]
  --write  writes the manifests
"""

import copy
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import jsonschema
    import yaml
except ImportError as error:
    print(f"SKIPPED: {error}; install python3-yaml and python3-jsonschema")
    sys.exit(0)

from chart import CHART, default_values, objects_of, render, with_changes
from deploy_files import ROOT, port, read, seconds, size
from go_template import Template, TemplateError
from kubernetes_fields import faults_of

FOLDER = os.path.join("deploy", "kubernetes")
HEAD = "# What deploy/helm/ovq-server gives by default; tests/deploy/kubernetes_test.py --write makes it anew.\n"


def manifests():
    """Returns {file: text} of deploy/kubernetes."""
    texts = render()
    for name, changes in (("monitor.yaml", {"monitor": True}),
                          ("scaling.yaml", {"scaling": {"enabled": True}})):
        texts[name] = render(changes)[name]
    return {name: HEAD + text for name, text in texts.items() if name.endswith(".yaml")}


class Manifests(unittest.TestCase):
    def test_they_are_what_the_chart_gives(self):
        written = {name: read(FOLDER, name) for name in os.listdir(os.path.join(ROOT, FOLDER))
                   if name.endswith(".yaml")}
        self.assertEqual(sorted(written), sorted(manifests()))
        for name, text in manifests().items():
            self.assertEqual(written[name], text, f"{name}: kubernetes_test.py --write makes it anew")

    def test_proxies_reach_the_pods(self):
        target = "ovq-server-pods:50051"
        self.assertIn(("Service", "ovq-server-pods"), objects_of(manifests()))
        self.assertIn(target, read(FOLDER, "affinity", "haproxy.cfg"))
        envoy = yaml.safe_load(read(FOLDER, "affinity", "envoy.yaml"))
        (cluster,) = envoy["static_resources"]["clusters"]
        (locality,) = cluster["load_assignment"]["endpoints"]
        address = locality["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
        self.assertEqual(f"{address['address']}:{address['port_value']}", target)


class ByDefault(unittest.TestCase):
    """Rules that the objects of a release must follow, whatever its values."""

    changes = {}
    release = "ovq-server"

    @classmethod
    def setUpClass(cls):
        cls.values = with_changes(default_values(), cls.changes)
        cls.objects = objects_of(render(cls.changes, cls.release))
        cls.labels = {"app.kubernetes.io/name": "ovq-server",
                      "app.kubernetes.io/instance": cls.release}
        cls.workload = cls.objects["StatefulSet", cls.release]["spec"]
        cls.pod = cls.workload["template"]["spec"]
        (cls.container,) = cls.pod["containers"]
        cls.options = dict(argument.removeprefix("--").split("=", 1) for argument in cls.container["args"])
        cls.ports = {item["name"]: item["containerPort"] for item in cls.container["ports"]}

    @unittest.skipIf(importlib.util.find_spec("kubernetes") is None, "no python3-kubernetes here")
    def test_kubernetes_has_every_field(self):
        faults = [fault for (kind, name), item in self.objects.items() if kind not in ("ServiceMonitor", "ScaledObject")
                  for fault in faults_of(item, "V1" + kind, f"{kind} {name}")]
        # Field of 1.24, newer than the package.
        self.assertEqual([fault for fault in faults if "Probe.grpc: V1Probe has no" not in fault], [])
        wrong = copy.deepcopy(self.objects["StatefulSet", self.release])
        wrong["spec"]["replicas"] = "2"
        wrong["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
        del wrong["spec"]["serviceName"]
        self.assertEqual(len(faults_of(wrong, "V1StatefulSet", "wrong")), 3 + 3 * ("tls" not in str(wrong)))

    def test_values_are_allowed(self):
        jsonschema.validate(self.values, yaml.safe_load(read(CHART, "values.schema.json")))

    def test_ports_are_those_of_the_options(self):
        self.assertEqual(self.ports["grpc"], port(self.options["listen"]))
        self.assertEqual(self.ports["metrics"], port(self.options["metrics-address"]))
        self.assertEqual("http" in self.ports, self.values["http"])
        if "http" in self.ports:
            self.assertEqual(self.ports["http"], port(self.options["http-listen"]))
        for service in (self.release, self.release + "-pods"):
            for item in self.objects["Service", service]["spec"]["ports"]:
                self.assertEqual(item["port"], self.ports[item["targetPort"]])

    def test_probes_ask_for_what_exists(self):
        services = re.findall(r"^service (\w+)", read("proto", "ovq", "v1", "inference.proto"),
                              re.MULTILINE)
        known = {""} | {f"ovq.v1.{service}" for service in services}
        for kind in ("startup", "liveness", "readiness"):
            probe = self.container[kind + "Probe"]
            self.assertEqual("grpc" in probe, "tls-cert" not in self.options)
            if "grpc" in probe:
                self.assertEqual(probe["grpc"]["port"], self.ports["grpc"])
                self.assertIn(probe["grpc"].get("service", ""), known)
            else:
                self.assertEqual(probe["tcpSocket"], {"port": "grpc"})

    def test_a_drain_has_the_time_it_needs(self):
        command = self.container["lifecycle"]["preStop"]["exec"]["command"]
        self.assertEqual(command[0], "sleep")
        needed = int(command[1]) + seconds(self.options["drain-timeout"])
        self.assertGreaterEqual(self.pod["terminationGracePeriodSeconds"], needed + 5)

    def test_memory_holds_the_states_and_more(self):
        limits = self.container["resources"]["limits"]
        self.assertGreater(size(limits["memory"]), size(self.options["state-memory"]) + (1 << 30))

    def test_threads_follow_the_limit(self):
        # --threads defaults to the processors of the quota (base/machine.h).
        resources = self.container["resources"]
        self.assertEqual(resources["limits"]["cpu"], resources["requests"]["cpu"])
        self.assertNotIn("threads", self.options)

    def test_scaling_asks_for_metrics_that_are_there(self):
        if not self.values["scaling"]["enabled"]:
            self.assertNotIn(("ScaledObject", self.release), self.objects)
            self.assertEqual(self.workload["replicas"], self.values["replicas"])
            return
        # an upgrade would reset the number that scaling has chosen
        self.assertNotIn("replicas", self.workload)
        spec = self.objects["ScaledObject", self.release]["spec"]
        self.assertEqual(spec["scaleTargetRef"], {"kind": "StatefulSet", "name": self.release})
        self.assertLess(spec["minReplicaCount"], spec["maxReplicaCount"])
        # A pod has left, with its drain, before the next one is removed; idle sessions expire first.
        scaling = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
        (policy,) = scaling["policies"]
        self.assertEqual((policy["type"], policy["value"]), ("Pods", 1))
        self.assertGreater(policy["periodSeconds"], self.pod["terminationGracePeriodSeconds"])
        if not self.values["sessionDisk"]["enabled"]:
            ttl = seconds(self.options.get("session-ttl", "30m"))
            self.assertGreaterEqual(scaling["stabilizationWindowSeconds"], ttl)
        source = read("server", "telemetry", "metrics.cc")
        queries = [trigger["metadata"]["query"] for trigger in spec["triggers"]]
        names = {name for query in queries for name in re.findall(r"\bovq_\w+", query)}
        self.assertEqual(len(queries), 2)
        for name in names:
            self.assertIn(f'"{name}"', source)
        for selector in re.findall(r"\{(.*?)\}", "".join(queries)):
            self.assertIn(f'job="ovq-server", service="{self.release}"', selector)

    def test_labels_select(self):
        selector = {"matchLabels": self.labels}
        self.assertEqual(self.workload["selector"], selector)
        self.assertEqual(self.workload["template"]["metadata"]["labels"], self.labels)
        self.assertEqual(self.objects["PodDisruptionBudget", self.release]["spec"]["selector"], selector)
        self.assertEqual(self.workload["serviceName"], self.release + "-pods")
        for service in (self.release, self.release + "-pods"):
            self.assertEqual(self.objects["Service", service]["spec"]["selector"], self.labels)
        self.assertEqual(self.objects["Service", self.release + "-pods"]["spec"]["clusterIP"], "None")

    def test_monitor_selects_one_service_that_has_its_port(self):
        if not self.values["monitor"]:
            self.assertNotIn(("ServiceMonitor", self.release), self.objects)
            return
        spec = self.objects["ServiceMonitor", self.release]["spec"]
        absent = [rule["key"] for rule in spec["selector"]["matchExpressions"]
                  if rule["operator"] == "DoesNotExist"]
        chosen = [item for (kind, _), item in self.objects.items() if kind == "Service"
                  and spec["selector"]["matchLabels"].items() <= item["metadata"]["labels"].items()
                  and not set(absent) & set(item["metadata"]["labels"])]
        self.assertEqual([item["metadata"]["name"] for item in chosen], [self.release])
        self.assertIn(spec["endpoints"][0]["port"], [p["name"] for p in chosen[0]["spec"]["ports"]])
        # The job that rules and dashboard select.
        self.assertEqual(chosen[0]["metadata"]["labels"][spec["jobLabel"]], "ovq-server")

    def test_only_clients_and_prometheus_reach_the_pods(self):
        if not self.values["network"]["policy"]:
            self.assertNotIn(("NetworkPolicy", self.release), self.objects)
            return
        spec = self.objects["NetworkPolicy", self.release]["spec"]
        self.assertEqual(spec["podSelector"], {"matchLabels": self.labels})
        self.assertEqual(spec["policyTypes"], ["Ingress", "Egress"])
        self.assertEqual(spec.get("egress", []), self.values["network"]["egress"])
        reached = {item["port"] for rule in spec["ingress"] for item in rule["ports"]}
        self.assertEqual(reached, set(self.ports))
        for rule in spec["ingress"]:
            self.assertTrue(rule["from"])

    def test_what_is_read_is_mounted(self):
        mounts = {mount["name"]: mount for mount in self.container["volumeMounts"]}
        volumes = {item["name"]: item for item in self.pod["volumes"]}
        claims = {item["metadata"]["name"] for item in self.workload.get("volumeClaimTemplates", [])}
        self.assertEqual(set(mounts), set(volumes) | claims)
        folders = {"tenants": "tenants", "tls": "tls-cert", "sessions": "session-dir",
                   "fleet": "fleet-key-file"}
        for name, option in folders.items():
            self.assertEqual(name in mounts, option in self.options, name)
            if name in mounts:
                self.assertEqual(os.path.dirname(self.options[option]), mounts[name]["mountPath"])
                self.assertEqual(mounts[name].get("readOnly", False), name != "sessions")
        if "fleet" in volumes:  # server/access/fleet_key_file.cc refuses a mode for others
            self.assertEqual(volumes["fleet"]["secret"]["defaultMode"], 0o440)
            self.assertIn("fsGroup", self.pod["securityContext"])
        # Tokens come from a required secret.
        secret = volumes["tenants"]["secret"]
        self.assertFalse(secret.get("optional", False))
        self.assertEqual(secret["secretName"], self.values["tenantsSecret"])


class WithAllThatIsOptional(ByDefault):
    release = "other"
    changes = {
        "image": {"repository": "registry.example/ovq-server", "tag": "1", "digest": "sha256:" + "0" * 64,
                  "pullPolicy": "Always", "pullSecrets": [{"name": "registry"}]},
        "modelClaim": "models", "model": "/models/large", "tlsSecret": "tls", "clientCa": True, "fleetKeysSecret": "fleet",
        "http": True,
        "options": {"log-format": "json", "session-ttl": "2h"}, "sessionDisk": {"enabled": True},
        "network": {"egress": [{"ports": [{"port": 4318}]}], "metricsClients": {"app": "ovq-server-epp"}}, "monitor": True,
        "scaling": {"enabled": True}, "podAnnotations": {"a": "b"}, "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }

    def test_all_of_it_is_there(self):
        self.assertEqual(self.container["image"], "registry.example/ovq-server@sha256:" + "0" * 64)
        self.assertEqual(self.pod["imagePullSecrets"], [{"name": "registry"}])
        self.assertEqual((self.options["log-format"], self.options["session-ttl"]), ("json", "2h"))
        self.assertEqual(self.options["tls-client-ca"], "/etc/ovq-server-tls/ca.crt")
        self.assertTrue(self.options["model"].startswith("/models/"))
        (claim,) = self.workload["volumeClaimTemplates"]
        self.assertEqual(claim["spec"]["resources"], {"requests": {"storage": "20Gi"}})
        self.assertNotIn("storageClassName", claim["spec"])
        self.assertEqual(self.workload["template"]["metadata"]["annotations"], {"a": "b"})
        self.assertEqual(self.pod["nodeSelector"], {"disk": "fast"})
        self.assertEqual(self.container["resources"]["limits"]["nvidia.com/gpu"], "1")
        self.assertIn(("ScaledObject", "other"), self.objects)


class WithScaling(ByDefault):
    changes = {"scaling": {"enabled": True}}


class WithoutAPolicy(ByDefault):
    changes = {"network": {"policy": False}, "image": {"tag": "1.2"}}

    def test_the_tag_is_used(self):
        self.assertEqual(self.container["image"], "ovq-server:1.2")


class Values(unittest.TestCase):
    def setUp(self):
        self.schema = yaml.safe_load(read(CHART, "values.schema.json"))

    def test_the_schema_knows_each_and_no_other(self):
        jsonschema.Draft7Validator.check_schema(self.schema)
        values = default_values()
        self.assertEqual(set(self.schema["properties"]) - {"global"}, set(values))
        for name, part in self.schema["properties"].items():
            if "properties" in part and part.get("additionalProperties") is False:
                self.assertEqual(set(part["properties"]), set(values[name]), name)

    def test_wrong_ones_are_refused(self):
        for changes, place in (
                ({"replica": 3}, ""), ({"replicas": 0}, "replicas"), ({"replicas": "2"}, "replicas"),
                ({"stateMemory": "4Gi"}, "stateMemory"), ({"tenantsSecret": ""}, "tenantsSecret"),
                ({"image": {"digest": "latest"}}, "image.digest"), ({"model": "models/x"}, "model"),
                ({"options": {"listen": "0.0.0.0:1"}}, "options"), ({"options": {"--device": "cuda"}}, "options"),
                ({"options": {"drain-notice": "60s"}}, "options"),  # of which the pod's end knows nothing
                ({"options": {"max-sessions": 2000000}}, "options.max-sessions"),
                ({"sessionDisk": {"size": "20G"}}, "sessionDisk.size"),
                ({"network": {"clients": {}, "policy": "yes"}}, "network.policy"),
                ({"resources": {"limits": {"memory": "lots"}}}, "resources.limits.memory"),
                ({"scaling": {"statePercent": 75}}, "scaling.statePercent")):
            with self.subTest(changes):
                errors = list(jsonschema.Draft7Validator(self.schema).iter_errors(
                    with_changes(default_values(), changes)))
                self.assertEqual([".".join(error.absolute_path) for error in errors], [place])

    def test_the_version_is_the_servers(self):
        version = re.search(r"project\(ovq_server VERSION (\S+)", read("CMakeLists.txt"))[1]
        chart = yaml.safe_load(read(CHART, "Chart.yaml"))
        self.assertEqual((chart["version"], chart["appVersion"]), (version, version))
        self.assertEqual(chart["name"], os.path.basename(CHART))

    def test_the_secret_is_made_as_the_texts_say(self):
        command = "kubectl create secret generic ovq-server-tenants --from-file=tenants.json=tenants.json"
        self.assertIn(command, render()["NOTES.txt"])
        self.assertIn(command, read("docs", "operations.md"))


class Renderer(unittest.TestCase):
    def test_what_the_chart_does_not_use_is_an_error(self):
        for text in ("{{ .a.c }}", "{{ .b }}", "{{ lower .a }}", "{{ if .a }}", "{{ end }}", "{{ (.a) }}",
                     "{{ .million }}", "{{ .a .a }}"):
            with self.subTest(text), self.assertRaises(TemplateError):
                Template({"t": text}).render("t", {"a": {}, "million": 10**6})


@unittest.skipIf(shutil.which("helm") is None, "no helm here")
class Helm(unittest.TestCase):
    def test_it_gives_the_same(self):
        for case in (ByDefault, WithAllThatIsOptional, WithoutAPolicy):
            with self.subTest(case.__name__), tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                yaml.safe_dump(case.changes, file)
                file.flush()
                chart = os.path.join(ROOT, CHART)
                subprocess.run(["helm", "lint", "--strict", chart, "--values", file.name], check=True)
                text = subprocess.run(["helm", "template", case.release, chart, "--values", file.name],
                                      check=True, capture_output=True, text=True).stdout
                self.assertEqual(objects_of({"all.yaml": text}), objects_of(render(case.changes, case.release)))


if __name__ == "__main__":
    if "--write" in sys.argv:
        for name, text in manifests().items():
            with open(os.path.join(ROOT, FOLDER, name), "w") as file:
                file.write(text)
        sys.exit(0)
    unittest.main(verbosity=2)
