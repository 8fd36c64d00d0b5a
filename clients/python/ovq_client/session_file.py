"""Session files: what one holds, and whether it is whole (docs/session-format.md)."""

import hashlib
import struct
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

MAGIC = b"OVQSESS\n"
VERSION = 1
_PRELUDE = struct.Struct("<8sI")
_SECTION = struct.Struct("<4sQ")
_HEAD = struct.Struct("<64sQqiIiIQQq")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_YEAR_10000 = 253_402_300_800_000
_HAS_PENDING, _KEEPS_TOKENS = 1, 2


def _crc_table() -> list[int]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """CRC-32C, a byte at a time: some seconds for 100 MB."""
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


class SessionFileError(ValueError):
    """What is wrong with a file, in words."""


@dataclass(frozen=True)
class SessionFile:
    """tokens: all of the conversation, None if the session keeps none. other: sections that this
    reader does not know. created: None if no calendar has it."""

    model_fingerprint: str
    layout_fingerprint: int
    memory: str
    slot_cap: int
    position: int
    pending: int | None
    tokens: tuple[int, ...] | None
    turn_ends: tuple[int, ...]
    created: datetime | None
    made_by: str
    state: bytes
    other: tuple[str, ...]


def _check(good: bool, problem: str) -> None:
    if not good:
        raise SessionFileError(problem)


def _sections(data: bytes) -> tuple[dict[str, bytes], list[str]]:
    _check(data[:8] == MAGIC, "not a session file: it does not begin with OVQSESS")
    _check(len(data) >= _PRELUDE.size, f"ends at byte {len(data)}, before its version")
    version = _PRELUDE.unpack_from(data)[1]
    _check(version == VERSION, f"version {version}, expected {VERSION}")
    known = ("HEAD", "TOKS", "TURN", "STAT", "DONE")
    sections: dict[str, bytes] = {}
    other = []
    at = _PRELUDE.size
    while "DONE" not in sections:
        _check(at + _SECTION.size <= len(data), f"ends at byte {len(data)}, before section DONE")
        raw, size = _SECTION.unpack_from(data, at)
        _check(raw.isalpha(), f"byte {at}: tag {raw!r}, expected four letters")
        tag = raw.decode("ascii")
        begin, end = at + _SECTION.size, at + _SECTION.size + size
        _check(end + 4 <= len(data), f"ends at byte {len(data)}, within section {tag}")
        crc, sum_ = crc32c(data[at:end]), int.from_bytes(data[end : end + 4], "little")
        _check(crc == sum_, f"section {tag}: checksum {sum_:08x}, expected {crc:08x}")
        _check(bool(sections) or tag == "HEAD", f"section {tag} comes first, expected HEAD")
        _check(tag not in sections, f"section {tag} comes twice")
        if tag in known:
            sections[tag] = data[begin:end]
        else:
            _check(tag[0].islower(), f"section {tag} is unknown and required")
            other.append(tag)
        if tag == "DONE":
            digest = hashlib.sha256(data[:at]).digest()
            found = sections[tag]
            _check(found == digest, f"SHA-256 {found.hex()}, expected {digest.hex()}")
        at = end + 4
    _check(at == len(data), f"bytes behind its end, at byte {at}")
    for tag in known:
        _check(tag in sections, f"section {tag} is missing")
    return sections, other


def parse(data: bytes) -> SessionFile:
    """A whole file, its checksums verified; SessionFileError says what is wrong with it."""
    sections, other = _sections(data)
    head = sections["HEAD"]
    _check(len(head) >= _HEAD.size + 2, f"section HEAD: {len(head)} bytes")
    model, layout, position, slot_cap, flags, *rest = _HEAD.unpack_from(head)
    pending, n_turns, n_tokens, state_bytes, created = rest
    texts = []
    at = _HEAD.size
    for _ in range(2):
        _check(at < len(head) and at + 1 + head[at] <= len(head), "section HEAD ends in a text")
        texts.append(head[at + 1 : at + 1 + head[at]].decode("utf-8", "replace"))
        at += 1 + head[at]
    _check(at == len(head), f"section HEAD: {len(head) - at} bytes too many")
    _check(flags < 4, f"section HEAD: flags {flags}, expected 0 to 3")
    waits, keeps = bool(flags & _HAS_PENDING), bool(flags & _KEEPS_TOKENS)
    expected = position + waits if keeps else 0
    _check(n_tokens == expected, f"section HEAD: {n_tokens} tokens, expected {expected}")
    for tag, size in (("TOKS", 4 * n_tokens), ("TURN", 8 * n_turns), ("STAT", state_bytes)):
        found = len(sections[tag])
        _check(found == size, f"section {tag}: {found} bytes, expected {size}")
    tokens = struct.unpack(f"<{n_tokens}i", sections["TOKS"])
    return SessionFile(
        model_fingerprint=model.decode("ascii", "replace"),
        layout_fingerprint=layout,
        memory=texts[0],
        slot_cap=slot_cap,
        position=position,
        pending=pending if waits else None,
        tokens=tokens if keeps else None,
        turn_ends=struct.unpack(f"<{n_turns}q", sections["TURN"]),
        created=_EPOCH + timedelta(milliseconds=created) if 0 <= created < _YEAR_10000 else None,
        made_by=texts[1],
        state=sections["STAT"],
        other=tuple(other),
    )


def read(path: str | Path) -> SessionFile:
    return parse(Path(path).read_bytes())


def describe(session: SessionFile) -> str:
    """A line for each thing that it holds."""
    lines = {
        "model": session.model_fingerprint,
        "layout": f"{session.layout_fingerprint:016x}",
        "memory": session.memory,
        "slot cap": session.slot_cap or "none",
        "position": session.position,
        "token that waits": "none" if session.pending is None else session.pending,
        "tokens": "not kept" if session.tokens is None else len(session.tokens),
        "turn ends": " ".join(map(str, session.turn_ends)) or "none",
        "state bytes": len(session.state),
        "created": session.created.isoformat(timespec="seconds")
        if session.created
        else "unknown",
        "made by": session.made_by,
        "other sections": " ".join(session.other) or "none",
    }
    return "\n".join(f"{name:<18} {value}" for name, value in lines.items())
