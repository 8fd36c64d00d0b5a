"""Writes small.ovqs, delta.ovqs, which goes on from it, and joined.ovqs, made of both, and the files
signed.ovqs and signed-joined.ovqs with a signature of KEY, by docs/session-format.md alone:
python3 tests/golden/session/make.py."""

import hashlib
import hmac
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


def ints(kind: str, values: list[int]) -> bytes:
    return struct.pack(f"<{len(values)}{kind}", *values)


def write(name: str, *sections: bytes) -> None:
    data = b"OVQSESS\n" + struct.pack("<I", 1) + b"".join(sections)
    data += section(b"DONE", hashlib.sha256(data).digest())
    (HERE / name).write_bytes(data)


MODEL, LAYOUT, SLOT_CAP, MADE = b"0123456789abcdef" * 4, 0x0123456789ABCDEF, 64, 1_700_000_000_123
STATE = bytes(i * 31 % 256 for i in range(100))


KEY, POSITION, KEEPS_TOKENS = bytes(range(32)), 6, 2


def signature(tokens: list[int]) -> bytes:
    claim = b"OVQSIGN\n" + MODEL + struct.pack("<QqiI", LAYOUT, POSITION, SLOT_CAP, KEEPS_TOKENS)
    claim += hashlib.sha256(ints("i", tokens[:POSITION])).digest() + hashlib.sha256(STATE).digest()
    return section(b"sign", hmac.new(KEY, claim + text(b"ovq"), "sha256").digest())


def write_file(
    name: str, tokens: list[int], turns: list[int], made_by: bytes, signs: bool = False
) -> None:
    head = struct.pack("<64sQqiIi", MODEL, LAYOUT, POSITION, SLOT_CAP, 3, tokens[-1])
    head += struct.pack("<IQQq", len(turns), len(tokens), len(STATE), MADE)
    write(
        name,
        section(b"HEAD", head + text(b"ovq") + text(made_by)),
        section(b"TOKS", ints("i", tokens)),
        section(b"TURN", ints("q", turns)),
        *([signature(tokens)] if signs else []),
        section(b"STAT", STATE),
    )


def main() -> None:
    tokens, turns = [5, 0, 41, 7, 7, 12, 3], [3, 7]
    for name, signs in (("small.ovqs", False), ("signed.ovqs", True)):
        write_file(name, tokens, turns, b"ovq-server test", signs)
    longer, more_turns = [*tokens, 1, 40, 2], [*turns, 9, 10]
    for name, signs in (("joined.ovqs", False), ("signed-joined.ovqs", True)):
        write_file(name, longer, more_turns, b"ovq_client session-file --join", signs)
    head = struct.pack("<64sQ", MODEL, LAYOUT)
    for known in (tokens, longer):
        head += struct.pack("<q", len(known)) + hashlib.sha256(ints("i", known)).digest()
    head += struct.pack("<iIIq", SLOT_CAP, 1, len(more_turns), MADE)
    write(
        "delta.ovqs",
        section(b"DELT", head + text(b"ovq") + text(b"ovq-server test")),
        section(b"TOKS", ints("i", longer[len(tokens) :])),
        section(b"TURN", ints("q", more_turns)),
    )


sys.exit(main())
