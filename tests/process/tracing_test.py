"""Spans of the real server's calls, decoded by a collector that knows the published schema.

usage: tracing_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import base64
import http.server
import json
import os
import re
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from certificates import make_authority, make_certificate
from server_process import ROOT, ServerProcess
from tiny_model import write_tiny_model

sys.path.insert(0, os.path.join(ROOT, "clients", "python"))
from ovq_client import Client, OvqError

BINARY = None
# The fields of spans without events and links in open-telemetry/opentelemetry-proto: trace.proto at
# commit 05e412fb, resource.proto at 1562fa6f, common.proto and collector/trace/v1/trace_service.proto
# of v1. message: {field: (number, type)}; "*": repeated, "?": member of the oneof value. Enumerations
# are int32, because OTLP's JSON does not use their names. In November 2026 a server's spans also passed
# through the classes that @opentelemetry/otlp-transformer 0.52.1 has from the published files, without
# losing a field.
SCHEMA = {
    "AnyValue": {"string_value": (1, "?string"), "bool_value": (2, "?bool"),
                 "int_value": (3, "?int64"), "double_value": (4, "?double"),
                 "bytes_value": (7, "?bytes")},
    "KeyValue": {"key": (1, "string"), "value": (2, "AnyValue")},
    "InstrumentationScope": {"name": (1, "string"), "version": (2, "string"),
                             "attributes": (3, "*KeyValue"), "dropped_attributes_count": (4, "uint32")},
    "Resource": {"attributes": (1, "*KeyValue"), "dropped_attributes_count": (2, "uint32")},
    "Status": {"message": (2, "string"), "code": (3, "int32")},
    "Span": {"trace_id": (1, "bytes"), "span_id": (2, "bytes"), "trace_state": (3, "string"),
             "parent_span_id": (4, "bytes"), "name": (5, "string"), "kind": (6, "int32"),
             "start_time_unix_nano": (7, "fixed64"), "end_time_unix_nano": (8, "fixed64"),
             "attributes": (9, "*KeyValue"), "dropped_attributes_count": (10, "uint32"),
             "dropped_events_count": (12, "uint32"), "dropped_links_count": (14, "uint32"),
             "status": (15, "Status"), "flags": (16, "fixed32")},
    "ScopeSpans": {"scope": (1, "InstrumentationScope"), "spans": (2, "*Span"),
                   "schema_url": (3, "string")},
    "ResourceSpans": {"resource": (1, "Resource"), "scope_spans": (2, "*ScopeSpans"),
                      "schema_url": (3, "string")},
    "ExportTraceServiceRequest": {"resource_spans": (1, "*ResourceSpans")},
}


def request_class():
    file = descriptor_pb2.FileDescriptorProto(name="otlp.proto", package="otlp", syntax="proto3")
    types = descriptor_pb2.FieldDescriptorProto
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            entry = message.field.add(name=field, number=number, label=types.LABEL_OPTIONAL)
            if kind[0] == "*":
                entry.label = types.LABEL_REPEATED
            if kind[0] == "?":
                if not message.oneof_decl:
                    message.oneof_decl.add(name="value")
                entry.oneof_index = 0
            kind = kind.lstrip("*?")
            if kind in SCHEMA:
                entry.type, entry.type_name = types.TYPE_MESSAGE, f".otlp.{kind}"
            else:
                entry.type = getattr(types, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    descriptor = pool.FindMessageTypeByName("otlp.ExportTraceServiceRequest")
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)


class Collector(http.server.ThreadingHTTPServer):
    """Accepts what the schema allows, and nothing else."""

    daemon_threads = True

    def __init__(self, tls=None):
        self.scheme = "http" if tls is None else "https"
        self.request_class, self.spans, self.errors, self.silent = request_class(), [], [], False
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if collector.silent:
                    time.sleep(30)
                try:
                    collector.take(self.path, self.headers["Content-Type"], json.loads(body))
                    self.send_response(200)
                except Exception as error:  # the test reports it
                    collector.errors.append(repr(error))
                    self.send_response(400)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def take(self, path, kind, body):
        assert (path, kind) == ("/v1/traces", "application/json"), (path, kind)
        # OTLP's JSON has ids in hexadecimal, protobuf's has base64.
        for resource in body["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    for name, size in (("traceId", 16), ("spanId", 8), ("parentSpanId", 8)):
                        if name in span:
                            data = bytes.fromhex(span[name])
                            assert len(data) == size, (name, span[name])
                            span[name] = base64.b64encode(data).decode()
        request = self.request_class()
        json_format.Parse(json.dumps(body), request)  # unknown fields and wrong types are errors
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.server_port}"


def attributes(span):
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}


class Tracing(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.model = os.path.join(folder.name, "tiny")
        write_tiny_model(cls.model)

    def setUp(self):
        self.collect()

    def collect(self, tls=None):
        self.collector = Collector(tls)
        self.addCleanup(self.collector.server_close)
        self.addCleanup(self.collector.shutdown)

    def serve(self, *flags):
        server = ServerProcess(BINARY, self.model, "--state-memory", "256M", "--trace-collector",
                               self.collector.url, *flags)
        self.addCleanup(server.kill)
        return server

    def ended(self, server):
        """Ends the server, which then sends its pending spans; returns them."""
        server.terminate()
        self.assertEqual(server.wait(), 0)
        self.assertEqual(self.collector.errors, [])
        return self.collector.spans

    def test_a_call_and_its_parts(self):
        server = self.serve()
        trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
        begin = time.time_ns()
        with Client(server.address, metadata=(("traceparent", f"00-{trace}-{parent}-01"),)) as client:
            list(client.generate([1, 2, 3], max_tokens=5))
        with Client(server.address, metadata=(("traceparent", f"00-{trace}-{parent}-00"),)) as client:
            list(client.generate([1, 2, 3], max_tokens=5))  # not sampled
        spans = self.ended(server)
        end = time.time_ns()
        self.assertEqual([span.name for span in spans],
                         ["ovq.v1/Generate", "decode", "prefill", "queue"])
        call, *parts = spans
        self.assertEqual((call.trace_id.hex(), call.parent_span_id.hex(), call.kind),
                         (trace, parent, 2))
        told = attributes(call)
        self.assertEqual((told["rpc.system"], told["rpc.method"], told["rpc.grpc.status_code"]),
                         ("grpc", "Generate", 0))
        self.assertEqual((told["ovq.prompt_tokens"], told["ovq.generated_tokens"]), (3, 5))
        self.assertIn(f"request_id={told['ovq.request_id']} trace_id={trace} span_id={call.span_id.hex()}",
                      server.stderr())
        for part in parts:
            self.assertEqual((part.trace_id, part.parent_span_id), (call.trace_id, call.span_id))
            self.assertGreaterEqual(part.start_time_unix_nano, call.start_time_unix_nano)
            self.assertLessEqual(part.end_time_unix_nano, call.end_time_unix_nano)
        self.assertLess(begin - 10**9, call.start_time_unix_nano)
        self.assertLess(call.end_time_unix_nano, end + 10**9)

    def test_turns_and_errors(self):
        server = self.serve()
        with Client(server.address) as client:
            with client.chat() as chat:
                for _ in range(2):
                    list(chat.send([1, 2], max_tokens=2))
            with self.assertRaises(OvqError):
                list(client.generate([1], temperature=1000))
        spans = self.ended(server)
        chat_span, failed = (next(span for span in spans if span.name == name and
                                  bool(span.status.code) == wrong)
                             for name, wrong in (("ovq.v1/Chat", False), ("ovq.v1/Generate", True)))
        turns = [span for span in spans if span.name == "turn"]
        self.assertEqual([attributes(turn)["ovq.turn"] for turn in turns], [1, 2])
        for turn in turns:
            self.assertEqual(turn.parent_span_id, chat_span.span_id)
            under = [span.name for span in spans if span.parent_span_id == turn.span_id]
            self.assertEqual(under, ["decode", "prefill", "queue"])
        self.assertEqual((failed.status.code, attributes(failed)["rpc.grpc.status_code"]), (2, 3))
        self.assertIn("temperature", failed.status.message)
        self.assertEqual(failed.parent_span_id, b"")

    def test_a_collector_that_says_nothing_delays_nobody(self):
        self.collector.silent = True
        server = self.serve()
        with Client(server.address) as client:
            times = []
            for _ in range(20):
                begin = time.monotonic()
                list(client.generate([1, 2, 3], max_tokens=2))
                times.append(time.monotonic() - begin)
        self.assertLess(sorted(times)[10], 1)  # it would be two seconds with a wait for the collector
        end = time.monotonic() + 20
        while 'ovq_trace_spans_total{result="failed"} 0' in server.metrics():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        self.assertIn('ovq_trace_spans_total{result="sent"} 0', server.metrics())

    def test_a_collector_with_tls(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for authority in ("ca", "other"):
            make_authority(folder.name, authority)
        make_certificate(folder.name, "collector")
        file = lambda name: os.path.join(folder.name, name)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(file("collector.pem"), file("collector.key"))
        for authority, taken in (("ca", 4), ("other", 0)):
            with self.subTest(authority):
                self.collect(tls)
                server = self.serve("--trace-collector-ca", file(f"{authority}.pem"))
                with Client(server.address) as client:
                    list(client.generate([1, 2, 3], max_tokens=5))
                spans = self.ended(server)
                self.assertEqual(len(spans), taken)
        for flags, message in (
                (("--trace-collector-ca", file("ca.key")), "expected PEM certificates, found none"),
                (("--trace-collector-ca", file("none")), "No such file"),
                (("--trace-collector-ca", file("ca.pem"), "--trace-collector", "http://c:4318"),
                 "expected --trace-collector https://HOST:PORT with it"),
                (("--trace-collector", "ftp://c:4318"), "expected http[s]://HOST:PORT[/PATH]")):
            with self.subTest(message):
                run = subprocess.run([BINARY, "--check-config", "--model", self.model,
                                      "--trace-collector", "https://c:4318", *flags],
                                     capture_output=True, text=True, timeout=60)
                self.assertEqual(run.returncode, 2 if "http" in message else 1, run.stderr)
                self.assertRegex(run.stderr, r"^ovq-server: error: --trace-collector\S*: .*" + re.escape(message))

    def test_off_by_default(self):
        with ServerProcess(BINARY, self.model, "--state-memory", "256M") as server:
            self.assertNotIn("ovq_trace_spans_total", server.metrics())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BINARY = os.path.join(os.path.abspath(options.build), "bin", "ovq-server")
    unittest.main(argv=[sys.argv[0], *rest])
