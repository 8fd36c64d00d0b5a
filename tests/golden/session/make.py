"""Writes small.ovqs by docs/session-format.md alone: python3 tests/golden/session/make.py."""

import hashlib
import struct
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def section(tag: bytes, payload: bytes) -> bytes:
    body = tag + struct.pack("<Q", len(payload)) + payload
    return body + struct.pack("<I", crc32c(body))


def text(of: bytes) -> bytes:
    return bytes([len(of)]) + of


def main() -> None:
    tokens = [5, 0, 41, 7, 7, 12, 3]
    turns = [3, 7]
    state = bytes(i * 31 % 256 for i in range(100))
    head = struct.pack(
        "<64sQqiIiIQQq",
        *(b"0123456789abcdef" * 4, 0x0123456789ABCDEF, 6, 64, 3, tokens[-1]),
        *(len(turns), len(tokens), len(state), 1_700_000_000_123),
    )
    data = b"OVQSESS\n" + struct.pack("<I", 1)
    data += section(b"HEAD", head + text(b"ovq") + text(b"ovq-server test"))
    data += section(b"TOKS", struct.pack(f"<{len(tokens)}i", *tokens))
    data += section(b"TURN", struct.pack(f"<{len(turns)}q", *turns))
    data += section(b"STAT", state)
    data += section(b"DONE", hashlib.sha256(data).digest())
    (HERE / "small.ovqs").write_bytes(data)


sys.exit(main())
