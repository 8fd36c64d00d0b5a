"""Session files and their deltas: parses and verifies them, and joins a file with later deltas
(docs/session-format.md)."""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

MAGIC = b"OVQSESS\n"
VERSION = 1
_PRELUDE = struct.Struct("<8sI")
_SECTION = struct.Struct("<4sQ")
# Sections of a file and of a delta, and the numbers that begin the first of them.
_SECTIONS = {"HEAD": ("HEAD", "TOKS", "TURN", "STAT", "DONE"), "DELT": ("DELT", "TOKS", "TURN", "DONE")}
_HEADS = {"HEAD": struct.Struct("<64sQqiIiIQQq"), "DELT": struct.Struct("<64sQq32sq32siIIq")}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_YEAR_10000 = 253_402_300_800_000
_HAS_PENDING, _KEEPS_TOKENS = 1, 2


def _crc_entry(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc


_CRC_TABLE = [_crc_entry(byte) for byte in range(256)]


def crc32c(data: bytes) -> int:
    """Computes CRC-32C a byte at a time: some seconds for 100 MB."""
    crc, table = 0xFFFFFFFF, _CRC_TABLE
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


class SessionFileError(ValueError):
    """A session file is invalid; the text says why."""


class Base(NamedTuple):
    """Identifies the conversation in a file: its number of tokens and their SHA-256.
    Client.export_session takes it to export only what came later."""

    length: int
    digest: bytes


def _pack_tokens(tokens: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)


@dataclass(frozen=True)
class _Head:
    """Has what a file and a delta have alike. other: sections that this reader does not know. form: the
    unfinished answer, empty without one. created: None if the time is outside the calendar."""

    model_fingerprint: str
    layout_fingerprint: int
    memory: str
    slot_cap: int
    pending: int | None
    turn_ends: tuple[int, ...]
    created: datetime | None
    made_by: str
    other: tuple[str, ...]
    form: bytes


@dataclass(frozen=True)
class SessionFile(_Head):
    """position: tokens that the state has consumed. tokens: the whole conversation, None if the
    session keeps no tokens. signature: by which a server knows a state of its fleet, empty without one."""

    position: int
    tokens: tuple[int, ...] | None
    state: bytes
    signature: bytes = b""

    @property
    def base(self) -> Base | None:
        if self.tokens is None:
            return None
        return Base(len(self.tokens), hashlib.sha256(_pack_tokens(self.tokens)).digest())


@dataclass(frozen=True)
class SessionDelta(_Head):
    """Changes since `since`: the tokens that lead to the conversation `base`. turn_ends: all of
    them, earlier ones included."""

    since: Base
    base: Base
    tokens: tuple[int, ...]


def _check(good: bool, problem: str) -> None:
    if not good:
        raise SessionFileError(problem)


def _sections(data: bytes) -> tuple[dict[str, bytes], tuple[str, ...]]:
    _check(data[:8] == MAGIC, "not a session file: it does not begin with OVQSESS")
    _check(len(data) >= _PRELUDE.size, f"ends at byte {len(data)}, before its version")
    version = _PRELUDE.unpack_from(data)[1]
    _check(version == VERSION, f"version {version}, expected {VERSION}")
    sections: dict[str, bytes] = {}
    known, other = _SECTIONS["HEAD"], []
    at = _PRELUDE.size
    while "DONE" not in sections:
        _check(at + _SECTION.size <= len(data), f"ends at byte {len(data)}, before section DONE")
        raw, size = _SECTION.unpack_from(data, at)
        _check(raw.isalpha(), f"byte {at}: tag {raw!r}, expected four letters")
        tag = raw.decode("ascii")
        if not sections:
            known = _SECTIONS.get(tag, known)
        begin, end = at + _SECTION.size, at + _SECTION.size + size
        _check(end + 4 <= len(data), f"ends at byte {len(data)}, within section {tag}")
        crc, sum_ = crc32c(data[at:end]), int.from_bytes(data[end : end + 4], "little")
        _check(crc == sum_, f"section {tag}: checksum {sum_:08x}, expected {crc:08x}")
        _check(bool(sections) or tag == known[0], f"section {tag} comes first, expected HEAD or DELT")
        _check(tag not in sections, f"section {tag} comes twice")
        if tag in known or tag in ("form", "sign"):
            sections[tag] = data[begin:end]
        else:
            _check(tag[0].islower(), f"section {tag} is unknown here and required")
            other.append(tag)
        if tag == "DONE":
            digest, found = hashlib.sha256(data[:at]).digest(), sections[tag]
            _check(found == digest, f"SHA-256 {found.hex()}, expected {digest.hex()}")
        at = end + 4
    _check(at == len(data), f"bytes behind its end, at byte {at}")
    for tag in known:
        _check(tag in sections, f"section {tag} is missing")
    return sections, tuple(other)


def _unpack_head(tag: str, head: bytes) -> tuple[list[Any], str, str]:
    """Returns the numbers and the two texts of the section HEAD or DELT."""
    layout = _HEADS[tag]
    _check(len(head) >= layout.size + 2, f"section {tag}: {len(head)} bytes")
    texts = []
    at = layout.size
    for _ in range(2):
        _check(at < len(head) and at + 1 + head[at] <= len(head), f"section {tag} ends in a text")
        texts.append(head[at + 1 : at + 1 + head[at]].decode("utf-8", "replace"))
        at += 1 + head[at]
    _check(at == len(head), f"section {tag}: {len(head) - at} bytes too many")
    model, *rest = layout.unpack_from(head)
    _check(re.fullmatch(b"[0-9a-f]{64}", model) is not None, f"section {tag}: of the model {model!r}")
    return [model.decode("ascii"), *rest], texts[0], texts[1]


def _unpack_list(sections: dict[str, bytes], tag: str, kind: str, count: int) -> tuple[int, ...]:
    found, expected = len(sections[tag]), struct.calcsize(f"<{kind}") * count
    _check(found == expected, f"section {tag}: {found} bytes, expected {expected}")
    return struct.unpack(f"<{count}{kind}", sections[tag])


def _unpack_turns(sections: dict[str, bytes], count: int, length: int) -> tuple[int, ...]:
    ends = _unpack_list(sections, "TURN", "q", count)
    for before, end in zip((0, *ends), ends):
        _check(before < end <= length, f"a turn ends at {end}, expected {before + 1} to {length}")
    return ends


def _created(ms: int) -> datetime | None:
    return _EPOCH + timedelta(milliseconds=ms) if 0 <= ms < _YEAR_10000 else None


def parse(data: bytes) -> SessionFile | SessionDelta:
    """Parses a whole file and verifies its checksums; raises SessionFileError if it is invalid."""
    sections, other = _sections(data)
    return _parse_file(sections, other) if "HEAD" in sections else _parse_delta(sections, other)


def _parse_file(sections: dict[str, bytes], other: tuple[str, ...]) -> SessionFile:
    fields, memory, made_by = _unpack_head("HEAD", sections["HEAD"])
    model, layout, position, slot_cap, flags, pending, n_turns, n_tokens, n_state, created = fields
    _check(flags < 4, f"section HEAD: flags {flags}, expected 0 to 3")
    _check(position >= 0, f"section HEAD: position {position}")
    waits, keeps = bool(flags & _HAS_PENDING), bool(flags & _KEEPS_TOKENS)
    least = position + waits if keeps else 0
    good = n_tokens >= least if keeps else n_tokens == 0
    _check(good, f"section HEAD: {n_tokens} tokens, expected {least}{' or more' * keeps}")
    tokens = _unpack_list(sections, "TOKS", "i", n_tokens)
    if waits and keeps:
        _check(tokens[-1] == pending, f"the last token is {tokens[-1]}, but {pending} waits")
    state = sections["STAT"]
    _check(len(state) == n_state, f"section STAT: {len(state)} bytes, expected {n_state}")
    turn_ends = _unpack_turns(sections, n_turns, n_tokens if keeps else position + waits)
    signature = sections.get("sign", b"")
    _check(len(signature) in (0, 32), f"section sign: {len(signature)} bytes, expected 32")
    return SessionFile(
        model, layout, memory, slot_cap, pending if waits else None, turn_ends, _created(created),
        made_by, other, sections.get("form", b""), position=position, tokens=tokens if keeps else None, state=state,
        signature=signature,
    )


def _parse_delta(sections: dict[str, bytes], other: tuple[str, ...]) -> SessionDelta:
    fields, memory, made_by = _unpack_head("DELT", sections["DELT"])
    model, layout, *ends, slot_cap, flags, n_turns, created = fields
    since, base = Base(*ends[:2]), Base(*ends[2:])
    waits = bool(flags & _HAS_PENDING)
    _check(flags < 2, f"section DELT: flags {flags}, expected 0 or 1")
    _check(
        0 <= since.length <= base.length,
        f"section DELT: {since.length} tokens first, then {base.length}",
    )
    _check(base.length > 0 or not waits, "section DELT: of no tokens the last one waits")
    tokens = _unpack_list(sections, "TOKS", "i", base.length - since.length)
    return SessionDelta(
        model, layout, memory, slot_cap, tokens[-1] if waits and tokens else None,
        _unpack_turns(sections, n_turns, base.length), _created(created), made_by, other,
        sections.get("form", b""), since=since, base=base, tokens=tokens,
    )


def read(path: str | Path) -> SessionFile | SessionDelta:
    return parse(Path(path).read_bytes())


def join(file: SessionFile, delta: SessionDelta) -> SessionFile:
    """Appends the delta's tokens to the file. The state keeps its position and its signature: an
    import prefills the tokens after it."""
    if file.tokens is None:
        raise SessionFileError("the file has no tokens, so no delta goes on from it")
    for name in ("model_fingerprint", "layout_fingerprint", "memory", "slot_cap"):
        one, other = getattr(file, name), getattr(delta, name)
        _check(one == other, f"not of one session: {name} {one} in the file, {other} in the delta")
    _check(
        file.base == delta.since,
        f"the delta goes on from {delta.since.length} tokens with SHA-256 "
        f"{delta.since.digest.hex()}, but the file has {len(file.tokens)} with "
        f"{hashlib.sha256(_pack_tokens(file.tokens)).hexdigest()}",
    )
    joined = replace(
        file,
        # Without new tokens the pending token is unchanged.
        pending=delta.pending if delta.tokens else file.pending,
        tokens=file.tokens + delta.tokens,
        turn_ends=delta.turn_ends,
        made_by="ovq_client session-file --join",
        other=(),
        form=delta.form,
    )
    _check(joined.base == delta.base, "the delta's tokens are not those that its head is of")
    return joined


def encode(file: SessionFile) -> bytes:
    """Returns the file's bytes, without sections that this reader does not know."""

    def section(tag: bytes, payload: bytes) -> bytes:
        body = _SECTION.pack(tag, len(payload)) + payload
        return body + crc32c(body).to_bytes(4, "little")

    tokens = () if file.tokens is None else file.tokens
    waits = _HAS_PENDING if file.pending is not None else 0
    head = _HEADS["HEAD"].pack(
        file.model_fingerprint.encode("ascii"),
        file.layout_fingerprint,
        file.position,
        file.slot_cap,
        waits | (_KEEPS_TOKENS if file.tokens is not None else 0),
        file.pending or 0,
        len(file.turn_ends),
        len(tokens),
        len(file.state),
        (file.created - _EPOCH) // timedelta(milliseconds=1) if file.created else 0,
    )
    for text in (file.memory, file.made_by):
        raw = text.encode()[:255]
        head += bytes([len(raw)]) + raw
    data = _PRELUDE.pack(MAGIC, VERSION)
    data += section(b"HEAD", head) + (section(b"form", file.form) if file.form else b"")
    data += section(b"TOKS", _pack_tokens(tokens))
    data += section(b"TURN", struct.pack(f"<{len(file.turn_ends)}q", *file.turn_ends))
    data += section(b"sign", file.signature) if file.signature else b""
    data += section(b"STAT", file.state)
    return data + section(b"DONE", hashlib.sha256(data).digest())


def describe(session: SessionFile | SessionDelta) -> str:
    """Returns one line for each part of the file."""
    tokens, base = session.tokens, session.base
    lines: dict[str, Any] = {}
    if isinstance(session, SessionDelta):
        lines["delta"] = f"of {session.base.length} tokens, for those that had {session.since.length}"
        lines["since SHA-256"] = session.since.digest.hex()
    lines["model"] = session.model_fingerprint
    lines["layout"] = f"{session.layout_fingerprint:016x}"
    lines["memory"] = session.memory
    lines["slot cap"] = session.slot_cap or "none"
    if isinstance(session, SessionFile):
        lines["position"] = session.position
    lines["token that waits"] = "none" if session.pending is None else session.pending
    lines["tokens"] = "not kept" if tokens is None else len(tokens)
    lines["tokens' SHA-256"] = base.digest.hex() if base else "none"
    lines["turn ends"] = " ".join(map(str, session.turn_ends)) or "none"
    if session.form:
        lines["form bytes"] = len(session.form)
    if isinstance(session, SessionFile):
        lines["state bytes"] = len(session.state)
        lines["signature"] = session.signature.hex() or "none"
    created = session.created
    lines["created"] = created.isoformat(timespec="seconds") if created else "unknown"
    lines["made by"] = session.made_by
    lines["other sections"] = " ".join(session.other) or "none"
    return "\n".join(f"{name:<18} {value}" for name, value in lines.items())
