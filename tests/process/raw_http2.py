"""HTTP/2 frames for clients that break the rules in ways that no library allows."""

import select
import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4
ACK = 1  # of SETTINGS and PING
INITIAL_WINDOW_SIZE = 4
CONNECTION_WINDOW = 65535  # bytes that a client may send before the server allows more


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(**values):
    """settings(initial_window_size=0), or none at all."""
    identifiers = {"initial_window_size": INITIAL_WINDOW_SIZE}
    return frame(SETTINGS, 0, 0, b"".join(
        struct.pack(">HI", identifiers[name], value) for name, value in values.items()))


def _string(text):
    """Encodes a string of up to 16 KiB, uncompressed."""
    data = text.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    rest = len(data) - 127
    return bytes([127, rest & 127 | 128, rest >> 7]) + data


def header(name, value):
    return b"\0" + _string(name) + _string(value)  # neither side's table gets an entry


def call_headers(method, *more):
    """Returns the header block of a gRPC call; method is "package.Service/Name"."""
    return b"\x83\x86" + b"".join((
        header(":path", f"/{method}"), header(":authority", "ovq"),
        header("content-type", "application/grpc"), header("te", "trailers"), *more))


def call(stream, method, *more):
    return frame(HEADERS, END_HEADERS, stream, call_headers(method, *more))


def message(data, compressed=False):
    return struct.pack(">BI", compressed, len(data)) + data


def data_frames(stream, data, size=16384):
    """Returns DATA frames, of which the last ends the client's side of the stream."""
    parts = [data[i:i + size] for i in range(0, len(data), size)]
    return b"".join(frame(DATA, END_STREAM if part is parts[-1] else 0, stream, part)
                    for part in parts)


class Connection:
    """A connection after the preface and SETTINGS; discards what the server sends."""

    def __init__(self, port, first=None):
        self._socket = socket.create_connection(("127.0.0.1", port), 10)
        self.next_stream = 1
        self.send(PREFACE + (settings() if first is None else first))

    def new_stream(self):
        self.next_stream += 2
        return self.next_stream - 2

    def send(self, data):
        """Sends bytes; OSError once the server has closed, or reads nothing for 10 s."""
        self._socket.sendall(data)

    def discard(self):
        """Discards received bytes; false once the server has closed."""
        try:
            while select.select([self._socket], [], [], 0)[0]:
                if not self._socket.recv(1 << 16):
                    return False
            return True
        except OSError:
            return False

    def close(self):
        self._socket.close()
