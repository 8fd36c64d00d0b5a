"""ovq-server as a plain container of Ray Serve: each replica runs one server and passes requests on to
its HTTP front, answers as they come. The image has Ray beside the server (deploy/docker/Dockerfile has the
server alone).

    serve run ovq_serve:build model=/usr/local/share/ovq-server/models/code-27m

docs/operations.md, "As a container of KServe or Ray Serve", says what was tried."""

import asyncio
import os
import signal
import subprocess

DRAIN_SECONDS = 30
MARGIN_SECONDS = 10  # a server that hangs ends 5 s after its drain
HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"upgrade"}


class Server:
    """Runs one ovq-server on a free port of this machine; ready once it is made."""

    def __init__(self, program, model, *options):
        self._process = subprocess.Popen(
            [program, f"--model={model}", "--http-listen=127.0.0.1:0", "--listen=127.0.0.1:0",
             f"--drain-timeout={DRAIN_SECONDS}s", *options], stdout=subprocess.PIPE,
            # Replicas share a machine, so each has a port of its own for metrics.
            env={"OVQ_METRICS_ADDRESS": "127.0.0.1:0", **os.environ})
        with self._process.stdout as output:
            addresses = output.readline() + output.readline()  # of gRPC and of HTTP, once it listens
        if not addresses:
            raise RuntimeError(f"{program} ended with {self._process.wait()}; its log says why")
        self.port = int(addresses.rsplit(b":", 1)[1])

    def alive(self):
        return self._process.poll() is None

    def stop(self):
        """Drains the server and returns its exit code."""
        if self.alive():
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(DRAIN_SECONDS + MARGIN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


async def read_head(reader):
    """Returns the status and the headers of an answer."""
    lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[:-2]
    headers = [tuple(part.strip() for part in line.split(b":", 1)) for line in lines[1:]]
    return int(lines[0].split()[1]), [(name.lower(), value) for name, value in headers]


async def body_parts(reader, headers):
    """Yields the parts of an answer's body as they come."""
    if dict(headers).get(b"transfer-encoding") != b"chunked":
        left = int(dict(headers).get(b"content-length", b"0"))
        while left > 0 and (part := await reader.read(min(left, 1 << 16))):
            left -= len(part)
            yield part
        if left > 0:
            raise ConnectionError("the server's answer was cut off")
        return
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield (await reader.readexactly(size + 2))[:-2]


async def request_of(scope, receive):
    """Returns the bytes of a request for the server; None if its client has gone."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body, more = body + message.get("body", b""), message.get("more_body", False)
    headers = [(name, value) for name, value in scope["headers"]
               if name.lower() not in HOP_BY_HOP | {b"host", b"content-length"}]
    headers += [(b"host", b"localhost"), (b"connection", b"close"), (b"content-length", b"%d" % len(body))]
    target = scope.get("raw_path") or scope["path"].encode()
    if scope.get("query_string"):
        target += b"?" + scope["query_string"]
    return (b"%s %s HTTP/1.1\r\n" % (scope["method"].encode(), target)
            + b"".join(b"%s: %s\r\n" % pair for pair in headers) + b"\r\n" + body)


async def pass_on(port, scope, receive, send):
    """Passes a request on to the server on this port, and its answer back."""
    request = await request_of(scope, receive)
    if request is None:
        return
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def answer():
        writer.write(request)
        status, headers = await read_head(reader)
        await send({"type": "http.response.start", "status": status,
                    "headers": [pair for pair in headers if pair[0] not in HOP_BY_HOP]})
        if scope["method"] != "HEAD":
            async for part in body_parts(reader, headers):
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def until_gone():
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(answer()), asyncio.ensure_future(until_gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        writer.close()  # the server cancels the answer of a client that has gone


server = None  # the replica's


async def application(scope, receive, send):
    """The ASGI application of a replica."""
    if scope["type"] == "http":
        return await pass_on(server.port, scope, receive, send)
    while scope["type"] == "lifespan":
        part = (await receive())["type"]
        await send({"type": part + ".complete"})
        if part == "lifespan.shutdown":
            return


def build(arguments):
    """Returns the application for `serve run`. Arguments: model, program, replicas, and cpus of one;
    OVQ_... variables are further options of the server."""
    from ray import serve

    @serve.deployment(
        num_replicas=int(arguments.get("replicas", 2)),
        ray_actor_options={"num_cpus": float(arguments.get("cpus", 4))},
        max_ongoing_requests=1024,  # the server has a queue of its own
        graceful_shutdown_timeout_s=DRAIN_SECONDS + MARGIN_SECONDS + 5)
    @serve.ingress(application)
    class OvqServer:
        def __init__(self):
            global server
            server = Server(arguments.get("program", "ovq-server"), arguments["model"])

        def check_health(self):
            if not server.alive():
                raise RuntimeError("ovq-server has ended")

        def __del__(self):
            if server is not None:
                server.stop()

    return OvqServer.bind()
