"""Shared by the tests of the HTTP front: a model with a chat template, a client and its streams."""

import http.client
import json
import os
import re
import ssl

from tiny_model import write_tiny_model

TEMPLATE = ("{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")


def write_chat_model(folder):
    write_tiny_model(folder)
    with open(os.path.join(folder, "chat_template.jinja"), "w") as file:
        file.write(TEMPLATE)
    return folder


def http_port(server):
    return int(re.search(r"http on https?://[^\s\"]+:(\d+)", server.stderr()).group(1))


class HttpClient:
    """One persistent connection; with a file of authorities (ca), over TLS."""

    def __init__(self, port, headers=None, timeout=30, ca=None):
        if ca is None:
            self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        else:
            self.connection = http.client.HTTPSConnection(
                "127.0.0.1", port, timeout=timeout, context=ssl.create_default_context(cafile=ca))
        self.headers = headers or {}

    def send(self, method, path, body=None, headers=None):
        """Sends a request; returns the response with its body unread."""
        all_headers = {**self.headers, **(headers or {})}
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if body is not None:
            all_headers.setdefault("Content-Type", "application/json")
        self.connection.request(method, path, body, all_headers)
        return self.connection.getresponse()

    def call(self, method, path, body=None, headers=None):
        """Returns (status, parsed JSON, headers)."""
        response = self.send(method, path, body, headers)
        text = response.read()
        return response.status, json.loads(text) if text else None, response.headers

    def get(self, path, **options):
        return self.call("GET", path, **options)

    def post(self, path, body, **options):
        return self.call("POST", path, body, **options)

    def stream(self, path, body, **options):
        """Yields the events of a stream, as JSON, until its end or [DONE], which is left out."""
        response = self.send("POST", path, body, **options)
        if response.status != 200:
            raise AssertionError((response.status, response.read()))
        return list(events_of(response))

    def response(self, body):
        """Streams a response of /v1/responses; returns it from the last event."""
        response = self.send("POST", "/v1/responses", body)
        if response.status != 200:
            raise AssertionError((response.status, response.read()))
        return [json.loads(line[6:]) for line in response if line.startswith(b"data: ")][-1]["response"]

    def close(self):
        self.connection.close()


def events_of(response):
    for line in response:
        if not line.startswith(b"data: "):
            assert line == b"\n" or line.startswith(b":"), line
            continue
        data = line[6:].strip()
        if data == b"[DONE]":
            assert response.readline() in (b"\n", b""), "something follows [DONE]"
            rest = response.read()
            assert rest == b"", rest
            return
        yield json.loads(data)
