"""An object store of the tests' own, as far as the server uses one: objects with ETags, conditional writes, lists in
pages, deletions, and signatures of version 4, which it checks by the rules alone. It keeps its objects in a folder, so
that it may be killed at any moment and started again.

usage: s3_server.py --folder FOLDER --port N [--page N]      (prints a line once it listens)

POST /_control?NAME=VALUE&... changes how it behaves:
  lose=N&word=W      carries out the next N writes of keys with W in them, and closes the connection without an answer
  status=S&count=N&method=M&word=W   answers the next N such requests with the status S and does nothing (N < 0: all)
  jump=SECONDS       makes all objects older
                     (bare=1: without XML, as a proxy does)
  late=T&count=N&word=W   closes the connection of the next N PUTs of such keys, and carries them out T seconds later
  careless=all|delete|create|none   ignores preconditions: all, of those that delete, or If-Match of an object that is not there
  slow=T&count=N&word=W   the answers of the next N GETs of such keys come T seconds late
  get=etag|length|none   answers to GETs lack ETags, or only the end of the connection ends them
  list=tokens|etags|keys   lists lack tokens, lack ETags, or have keys of others
Without it, as S3Server(...), this module starts it as a process.
"""

import argparse
import contextlib
import datetime
import email.utils
import hashlib
import hmac
import http.client
import http.server
import json
import os
import select
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from xml.sax.saxutils import escape

from free_port import free_port

KEY_ID, SECRET, REGION, BUCKET = "TESTKEY", "secret/of+the=tests", "us-east-1", "sessions"
NAMES = {301: "PermanentRedirect", 403: "AccessDenied", 404: "NoSuchKey", 409: "ConditionalRequestConflict",
         412: "PreconditionFailed", 500: "InternalError", 503: "SlowDown"}


def expected_signature(method, path, query, headers, signed, digest, date, region, secret):
    """The signature by docs.aws.amazon.com, "Signature Version 4": path and query as they were sent."""
    pairs = sorted(pair if "=" in pair else pair + "=" for pair in query.split("&") if pair)
    lines = "".join(f"{name}:{' '.join(headers[name].split())}\n" for name in signed)
    request = "\n".join([method, path, "&".join(pairs), lines, ";".join(signed), digest])
    scope = f"{date[:8]}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = ("AWS4" + secret).encode()
    for part in (date[:8], region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


class Store:
    """Objects by key: [bytes, ETag, time]."""

    def __init__(self, folder):
        self.folder, self.lock, self.objects = folder, threading.RLock(), {}
        self.age = self.to_lose = 0
        self.lose_word = ""
        self.refusals = None  # [status, count, method, word]
        self.careless, self.bare = "none", False
        self.list_fault = ""
        self.late = self.slow = None  # [seconds, count, word]
        self.get_fault = ""
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if name.endswith(".part"):
                os.remove(path)
                continue
            with open(path, "rb") as file:
                key, _, data = file.read().partition(b"\n")
            self.objects[key.decode()] = [data, self.etag(data), os.path.getmtime(path)]

    @staticmethod
    def etag(data):
        return '"' + hashlib.md5(data).hexdigest() + '"'

    def path(self, key):
        return os.path.join(self.folder, hashlib.sha256(key.encode()).hexdigest())

    def put(self, key, data):
        path = self.path(key)
        with open(path + ".part", "wb") as file:
            file.write(key.encode() + b"\n" + data)
        os.rename(path + ".part", path)
        self.objects[key] = [data, self.etag(data), time.time()]
        return self.objects[key][1]

    def delete(self, key):
        if self.objects.pop(key, None):
            os.remove(self.path(key))

    def refused(self, method, key):
        """A status to answer with instead of doing anything, or None."""
        if not self.refusals:
            return None
        status, count, wanted, word = self.refusals
        if count == 0 or method != (wanted or method) or word not in key:
            return None
        self.refusals[1] -= 1
        return status

    def loses(self, key):
        if self.to_lose <= 0 or self.lose_word not in key:
            return False
        self.to_lose -= 1
        return True

    def control(self, query):
        if "lose" in query:
            self.to_lose, self.lose_word = int(query["lose"]), query.get("word", "")
        if "status" in query:
            self.refusals = [int(query["status"]), int(query["count"]), query.get("method", ""), query.get("word", "")]
            self.bare = query.get("bare") == "1"
        if "late" in query:
            self.late = [float(query["late"]), int(query["count"]), query.get("word", "")]
        if "slow" in query:
            self.slow = [float(query["slow"]), int(query["count"]), query.get("word", "")]
        self.get_fault = query.get("get", self.get_fault)
        self.list_fault = query.get("list", self.list_fault)
        if "careless" in query:
            self.careless = query["careless"]
        self.age += float(query.get("jump", 0))
        return json.dumps({"keys": sorted(self.objects)}).encode()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    store = page = None
    after = 0  # seconds before the answer is sent

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", headers=()):
        lines = [f"HTTP/1.1 {status} {NAMES.get(status, 'OK')}", f"Date: {email.utils.formatdate(usegmt=True)}"]
        lines += [f"{name}: {value}" for name, value in headers]
        if self.command == "GET" and self.store.get_fault == "length":
            self.close_connection = True
            lines.append("Connection: close")
        elif status not in (204, 304):
            lines.append(f"Content-Length: {len(body)}")
        self.out = "\r\n".join(lines + ["", ""]).encode() + body

    def error(self, status, code=None, message="told by the tests' server", headers=()):
        code = code or NAMES.get(status, "Error")
        self.answer(status, ('<?xml version="1.0" encoding="UTF-8"?>\n<Error>'
                             f"<Code>{code}</Code><Message>{escape(message)}</Message></Error>").encode(),
                    [("Content-Type", "application/xml"), *headers])

    def signature_fault(self, path, query, body):
        headers = {name.lower(): value for name, value in self.headers.items()}
        kind, _, rest = headers.get("authorization", "").partition(" ")
        parts = dict(part.strip().split("=", 1) for part in rest.split(",") if "=" in part)
        if kind != "AWS4-HMAC-SHA256" or set(parts) != {"Credential", "SignedHeaders", "Signature"}:
            return "AccessDenied", "no signature"
        date, digest = headers.get("x-amz-date", ""), headers.get("x-amz-content-sha256", "")
        key_id, day, region, service, end = parts["Credential"].split("/")
        signed = parts["SignedHeaders"].split(";")
        if key_id != KEY_ID:
            return "InvalidAccessKeyId", f"there is no key {key_id}"
        if region != REGION or service != "s3" or end != "aws4_request" or day != date[:8]:
            return "AuthorizationHeaderMalformed", f"the region '{region}' is wrong; expecting '{REGION}'"
        if digest != hashlib.sha256(body).hexdigest():
            return "XAmzContentSHA256Mismatch", "another body was signed"
        needed = {name for name in headers if name.startswith("x-amz-")} | {"host"}
        if signed != sorted(signed) or not needed <= set(signed):
            return "AccessDenied", "headers that must be signed are not"
        when = datetime.datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc)
        if abs(time.time() - when.timestamp()) > 900:
            return "RequestTimeTooSkewed", "the request's time differs by more than 15 minutes"
        signature = expected_signature(self.command, path, query, headers, signed, digest, date, region, SECRET)
        if not hmac.compare_digest(signature, parts["Signature"]):
            return "SignatureDoesNotMatch", "the signature is not the one of this request"
        return None

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, _, query = self.path.partition("?")
        with self.store.lock:
            if path == "/_control":
                return self.answer(200, self.store.control(dict(urllib.parse.parse_qsl(query))))
            fault = self.signature_fault(path, query, body)
            if fault:
                return self.error(403, *fault)
            bucket, _, key = urllib.parse.unquote(path[1:]).partition("/")
            if bucket != BUCKET:
                return self.error(404, "NoSuchBucket", f"there is no bucket {bucket}")
            status = self.store.refused(self.command, key)
            if status is not None:
                return self.answer(status) if self.store.bare else self.error(status)
            if not key:
                return self.list(dict(urllib.parse.parse_qsl(query)))
            return getattr(self, "object_" + self.command.lower())(key, body)

    def handle_and_send(self):
        self.out, self.after = b"", 0
        self.handle_any()
        time.sleep(self.after)
        self.wfile.write(self.out)

    do_GET = do_PUT = do_DELETE = do_POST = handle_and_send

    def list(self, query):
        if query.get("list-type") != "2":
            return self.error(501, "NotImplemented")
        keys = sorted(key for key in self.store.objects if key.startswith(query.get("prefix", "")) and
                      key > query.get("continuation-token", ""))
        page, more = keys[:self.page], len(keys) > self.page
        out = ['<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">',
               f"<Name>{BUCKET}</Name><IsTruncated>{'true' if more else 'false'}</IsTruncated>"]
        fault = self.store.list_fault
        if more and fault != "tokens":
            out.append(f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>")
        for key in page:
            data, etag, when = self.store.objects[key]
            moment = datetime.datetime.fromtimestamp(when - self.store.age, datetime.timezone.utc)
            etag, key = "" if fault == "etags" else etag, "another/" + key if fault == "keys" else key
            out.append(f"<Contents><Key>{escape(key)}</Key><LastModified>{moment:%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
                       f"<ETag>{escape(etag, {chr(34): '&quot;'})}</ETag><Size>{len(data)}</Size></Contents>")
        self.answer(200, ("".join(out) + "</ListBucketResult>").encode(), [("Content-Type", "application/xml")])

    def object_get(self, key, _):
        if key not in self.store.objects:
            return self.error(404)
        data, etag, _ = self.store.objects[key]
        slow = self.store.slow
        if slow and slow[1] > 0 and slow[2] in key:
            slow[1] -= 1
            self.after = slow[0]
        if self.store.get_fault == "etag":
            return self.answer(200, data)
        if self.headers.get("If-None-Match") == etag:
            return self.answer(304, headers=[("ETag", etag)])
        return self.answer(200, data, [("ETag", etag)])

    def precondition_fault(self, key):
        there = self.store.objects.get(key)
        if self.store.careless in ("all", self.command.lower()):
            return None
        if self.headers.get("If-None-Match") == "*" and there:
            return 412
        wanted = self.headers.get("If-Match")
        if wanted is not None and not there:
            return None if self.store.careless == "create" else 404
        return 412 if wanted is not None and there[1] != wanted else None

    def written(self, key, status, headers=()):
        if not self.store.loses(key):
            return self.answer(status, headers=headers)
        return self.hang_up()

    def hang_up(self):
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def put_late(self, key, body):
        with self.store.lock:
            if not self.precondition_fault(key):
                self.store.put(key, body)

    def object_put(self, key, body):
        late = self.store.late
        if late and late[1] > 0 and late[2] in key:
            late[1] -= 1
            threading.Timer(late[0], self.put_late, (key, body)).start()
            return self.hang_up()
        fault = self.precondition_fault(key)
        if fault:
            return self.error(fault)
        return self.written(key, 200, [("ETag", self.store.put(key, body))])

    def object_delete(self, key, _):
        fault = self.precondition_fault(key)
        if fault == 412:
            return self.error(fault)
        self.store.delete(key)
        return self.written(key, 204)


class Listener(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        pass  # a client that goes is none


class S3Server:
    """The server as a process on a free port. kill, then start: a crash. tls: (certificate, key)."""

    def __init__(self, *flags, tls=None):
        self.folder, self.flags, self.port, self.tls = tempfile.mkdtemp(), flags, free_port(), tls
        self.credentials = os.path.join(self.folder, "credentials")
        with open(os.open(self.credentials, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(f"[default]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\n")
        os.mkdir(os.path.join(self.folder, "objects"))
        self.start()

    @property
    def endpoint(self):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def start(self):
        flags = [*self.flags, *(("--tls", *self.tls) if self.tls else ())]
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--folder", os.path.join(self.folder, "objects"),
             "--port", str(self.port), *flags], stdout=subprocess.PIPE, text=True)
        ready, _, _ = select.select([self.process.stdout], [], [], 60)
        line = self.process.stdout.readline() if ready else ""
        if line != "listening\n":
            raise RuntimeError(f"the object store does not start: {line!r}")

    def control(self, **commands):
        """Returns the keys that it has."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("POST", "/_control?" + urllib.parse.urlencode(commands))
            return json.loads(connection.getresponse().read())["keys"]
        finally:
            connection.close()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        shutil.rmtree(self.folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--page", type=int, default=1000)
    parser.add_argument("--tls", nargs=2, metavar=("CERTIFICATE", "KEY"))
    options = parser.parse_args()
    Handler.store, Handler.page = Store(options.folder), options.page
    server = Listener(("127.0.0.1", options.port), Handler)
    if options.tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*options.tls)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    print("listening", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
