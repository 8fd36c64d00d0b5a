"""The files by which proxies and platforms route calls: every name of a call's key pins in each, and
what they ask of a server is there. No proxy but HAProxy is run; tests/process runs that one."""

import os
import re
import sys
import unittest

try:
    import yaml
except ImportError as error:
    print(f"SKIPPED: {error}; install python3-yaml")
    sys.exit(0)

from chart import default_values, objects_of, render
from deploy_files import read, seconds

KUBERNETES = os.path.join("deploy", "kubernetes")
BODY_FIELD = "prompt_cache_key"


def key_headers():
    """Returns the headers in which the server looks for a call's key, first ones first."""
    text = read("server", "calls", "convert.cc")
    (names,) = re.findall(r"for \(const char\* name : \{([^}]*\"x-session-id\"[^}]*)\}", text)
    return ["ovq-session", *re.findall(r'"([^"]+)"', names)]


def served_metrics():
    """Returns the names of all series, as the server's sources declare them."""
    text = "".join(read("server", "telemetry", name) for name in ("metrics.cc", "metrics.h"))
    return set(re.findall(r'"(ovq_\w+)"', text))


def known_flags():
    return set(re.findall(r'flags\.Add\(\s*"([a-z-]+)"', read("server", "options.cc")))


def documents(*path):
    return {(item["kind"], item["metadata"]["name"]): item for item in yaml.safe_load_all(read(*path))}


class Keys(unittest.TestCase):
    def test_the_server_has_the_names_that_clients_send(self):
        self.assertLessEqual({"ovq-session", "x-session-id", "session-id", "x-session-affinity"},
                             set(key_headers()))
        self.assertIn(BODY_FIELD, read("docs", "http.md"))

    def test_haproxy_pins_by_each(self):
        for path in (("deploy", "haproxy", "haproxy.cfg"), ("deploy", "haproxy", "haproxy-http.cfg"),
                     (KUBERNETES, "affinity", "haproxy.cfg")):
            text = read(*path)
            found = re.findall(r"set-var\(txn\.key\) req\.hdr\(([\w-]+)\)", text)
            self.assertEqual(found, key_headers(), path)
            self.assertIn("stick on var(txn.key)", text)
            self.assertEqual(f"json_query('$.{BODY_FIELD}')" in text, "http" in path[-1], path)

    def test_envoy_pins_by_each(self):
        for name, more in (("envoy.yaml", []), ("envoy-http.yaml", ["x-ovq-prompt-cache-key"])):
            (listener,) = yaml.safe_load(read(KUBERNETES, "affinity", name))["static_resources"]["listeners"]
            (chain,) = listener["filter_chains"]
            manager = chain["filters"][0]["typed_config"]
            (host,) = manager["route_config"]["virtual_hosts"]
            policy = host["routes"][0]["route"]["hash_policy"]
            self.assertEqual([rule["header"]["header_name"] for rule in policy], key_headers() + more)
            self.assertTrue(all(rule["terminal"] for rule in policy))
            filters = [item["name"].rsplit(".", 1)[1] for item in manager["http_filters"]]
            self.assertEqual(filters[-1], "router")
            if not more:
                continue
            # The body's field becomes a header before the router hashes it.
            self.assertEqual(filters, ["json_to_metadata", "header_mutation", "router"])
            (rule,) = manager["http_filters"][0]["typed_config"]["request_rules"]["rules"]
            self.assertEqual(rule["selectors"], [{"key": BODY_FIELD}])
            there = rule["on_present"]
            remove, append = manager["http_filters"][1]["typed_config"]["mutations"]["request_mutations"]
            self.assertEqual(remove, {"remove": more[0]})
            self.assertEqual(append["append"]["header"], {
                "key": more[0], "value": f"%DYNAMIC_METADATA({there['metadata_namespace']}:{there['key']})%"})


class Gateway(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.objects = documents(KUBERNETES, "gateway", "inference.yaml")
        cls.picker = yaml.safe_load(cls.objects["ConfigMap", "ovq-server-epp"]["data"]["picker.yaml"])
        cls.plugins = {item.get("name", item["type"]): item for item in cls.picker["plugins"]}
        (cls.profile,) = cls.picker["schedulingProfiles"]
        cls.chart = objects_of(render({"http": True}))

    def test_every_metric_that_it_reads_is_served(self):
        (extractor,) = [item for item in self.plugins.values() if item["type"] == "core-metrics-extractor"]
        (engine,) = extractor["parameters"]["engineConfigs"]
        self.assertEqual(engine["name"], extractor["parameters"]["defaultEngine"])
        specs = {name: value for name, value in engine.items() if name.endswith("Spec")}
        self.assertEqual(set(specs), {"queuedRequestsSpec", "runningRequestsSpec", "kvUsageSpec"})
        self.assertLessEqual(set(specs.values()), served_metrics())

    def test_every_name_of_the_key_pins(self):
        references = [item["pluginRef"] for item in self.profile["plugins"]]
        filters = [self.plugins[name] for name in references
                   if self.plugins[name]["type"] == "session-affinity-filter"]
        self.assertEqual([item["parameters"]["headerName"] for item in filters], key_headers())
        for item in filters:
            self.assertEqual(item["parameters"]["strategy"], "session_id_header")
            # A key outlives --session-ttl, as in HAProxy's table.
            self.assertGreater(item["parameters"]["evictionTtlSeconds"], seconds("30m"))
        (producer,) = [item for item in self.plugins.values() if item["type"] == "session-id-producer"]
        self.assertEqual(producer["parameters"], {"bodyField": BODY_FIELD})
        self.assertIn("session-control-filter", references)

    def test_every_reference_is_to_a_plugin(self):
        references = [item["pluginRef"] for item in self.profile["plugins"]]
        for source in self.picker["dataLayer"]["sources"]:
            references += [source["pluginRef"], *(item["pluginRef"] for item in source["extractors"])]
        self.assertLessEqual(set(references), set(self.plugins))
        self.assertEqual(len(self.plugins), len(self.picker["plugins"]), "names differ")

    def test_the_parts_fit_the_chart(self):
        pool = self.objects["InferencePool", "ovq-server"]["spec"]
        workload = self.chart["StatefulSet", "ovq-server"]["spec"]
        self.assertEqual(pool["selector"], workload["selector"])
        ports = {item["name"]: item["containerPort"]
                 for item in workload["template"]["spec"]["containers"][0]["ports"]}
        self.assertEqual(pool["targetPorts"], [{"number": ports["http"]}])
        deployment = self.objects["Deployment", "ovq-server-epp"]["spec"]
        (container,) = deployment["template"]["spec"]["containers"]
        options = dict(item.removeprefix("--").split("=", 1) for item in container["args"])
        self.assertEqual(int(options["model-server-metrics-port"]), ports["metrics"])
        self.assertEqual(options["pool-name"], "ovq-server")
        mount = container["volumeMounts"][0]["mountPath"]
        self.assertEqual(options["config-file"], mount + "/picker.yaml")
        self.assertEqual(deployment["replicas"], 1, "its tables are in its memory")
        reference = pool["endpointPickerRef"]
        service = self.objects["Service", reference["name"]]["spec"]
        self.assertEqual(reference["port"]["number"], service["ports"][0]["port"])
        self.assertEqual(int(options["grpc-port"]), service["ports"][0]["port"])
        labels = deployment["template"]["metadata"]["labels"]
        self.assertLessEqual(service["selector"].items(), labels.items())
        # The network policy lets it call and, as operations.md says, read metrics.
        self.assertLessEqual(default_values()["network"]["clients"].items(), labels.items())
        self.assertIn("network.metricsClients.app=ovq-server-epp", read("docs", "operations.md"))
        (rule,) = self.objects["HTTPRoute", "ovq-server"]["spec"]["rules"]
        (backend,) = rule["backendRefs"]
        self.assertEqual((backend["kind"], backend["name"]), ("InferencePool", "ovq-server"))


class KServe(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        objects = documents(KUBERNETES, "kserve", "inference-service.yaml")
        cls.predictor = objects["InferenceService", "ovq-server"]["spec"]["predictor"]
        (cls.container,) = cls.predictor["containers"]
        cls.options = dict(item.removeprefix("--").split("=", 1) for item in cls.container["args"])

    def test_the_container_is_that_of_the_chart(self):
        (container,) = objects_of(render({"http": True}))["StatefulSet", "ovq-server"]["spec"]["template"]["spec"]["containers"]
        self.assertEqual(sorted(self.container["args"]), sorted(container["args"]))
        self.assertLessEqual(set(self.options), known_flags())
        for name in ("securityContext", "lifecycle", "resources", "volumeMounts"):
            self.assertEqual(self.container[name], container[name], name)

    def test_probes_and_ports_are_those_of_the_options(self):
        http = int(self.options["http-listen"].rsplit(":", 1)[1])
        self.assertEqual([item["containerPort"] for item in self.container["ports"]], [http])
        for kind in ("startupProbe", "readinessProbe"):
            self.assertEqual(self.container[kind]["httpGet"], {"path": "/health", "port": http})
        # A server that drains is not ready, but lives.
        self.assertEqual(self.container["livenessProbe"]["tcpSocket"], {"port": http})

    def test_a_drain_has_the_time_it_needs(self):
        leave = int(self.container["lifecycle"]["preStop"]["exec"]["command"][1])
        needed = leave + seconds(self.options["drain-timeout"])
        self.assertGreaterEqual(self.predictor["terminationGracePeriodSeconds"], needed + 5)


if __name__ == "__main__":
    unittest.main(verbosity=2)
