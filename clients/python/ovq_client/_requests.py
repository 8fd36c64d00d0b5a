"""Converts arguments to fields of requests of ovq.v1."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any, Union

from ovq_client._messages import MESSAGES
from ovq_client.constraint import constraint_fields
from ovq_client.types import Conversation, FinishReason, Options, Prompt

# Long prompts of a chat are sent in parts, far below the 4 MiB that a gRPC server accepts in one
# message.
_PART_BYTES = 64 * 1024
_PART_IDS = 16 * 1024
_FILE_PART_BYTES = 1 << 20

_OPTION_MESSAGES = {"sampling": "SamplingParams", "stop": "StopConditions", "output": "OutputOptions"}


def check_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a str, got {type(value).__name__}")
    return value


def check_ids(name: str, value: Any) -> list[int]:
    """Rejects str and bytes, which are sequences, too: nobody who passes one means its characters.
    """
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{name}: expected a sequence of int, got {type(value).__name__}")
    return list(value)


def prompt_fields(prompt: Prompt | None, cacheable: bool | None = None) -> dict[str, Any] | None:
    if prompt is None:
        return None
    if isinstance(prompt, str):
        return {"text": prompt, "cacheable": cacheable}
    if isinstance(prompt, Conversation):
        return {"conversation": conversation_fields(prompt), "cacheable": cacheable}
    return {"token_ids": {"ids": check_ids("prompt", prompt)}, "cacheable": cacheable}


def conversation_fields(of: Conversation) -> dict[str, Any]:
    messages = [
        {"role": check_text("role", role), "content": check_text("content", content)}
        for role, content in of.messages
    ]
    return {**vars(of), "messages": messages}


def duration(seconds: float | None) -> dict[str, int] | None:
    if seconds is None:
        return None
    whole = int(seconds)
    nanos = round((seconds - whole) * 1e9)
    carry = int(nanos / 1e9)  # 1.9999999999 is 2 s
    return {"seconds": whole + carry, "nanos": nanos - carry * 10**9}


def option_messages(options: Options) -> dict[str, Any]:
    """Returns the request fields sampling, stop and output; fields without an option stay absent.
    """
    left: dict[str, Any] = dict(options)
    if "stop_strings" in left:
        texts = left["stop_strings"]
        if isinstance(texts, (str, bytes)):
            raise TypeError(
                "stop_strings: expected a sequence of str, got one "
                f"{type(texts).__name__}: write [{texts!r}]"
            )
        left["stop_strings"] = [check_text("stop_strings", text) for text in texts]
    if "stop_token_ids" in left:
        left["stop_token_ids"] = check_ids("stop_token_ids", left["stop_token_ids"])
    if left.get("constraint") is not None:
        left["constraint"] = constraint_fields(left["constraint"])
    messages = {}
    for field, name in _OPTION_MESSAGES.items():
        known = MESSAGES[name].DESCRIPTOR.fields_by_name
        values = {key: left.pop(key) for key in list(left) if key in known}
        if values:
            messages[field] = values
    if left:
        raise TypeError(f"unknown options: {', '.join(sorted(left))}")
    return messages


def session_key(session_id: str | None) -> str:
    """Returns the key that keeps a session's calls on its server behind a balancer: a new one
    without an id, else the id's key (ids are KEY.RANDOM if the session was created with a key)."""
    if session_id is None:
        return secrets.token_hex(16)
    found = re.match(r"([A-Za-z0-9_-]+)\.", session_id)
    return found.group(1) if found else ""


def _prompt_parts(prompt: Prompt) -> list[Prompt]:
    """Splits the prompt into parts that add up to it; text is cut between characters, a
    conversation is not cut."""
    if isinstance(prompt, Conversation):
        return [prompt]
    if not isinstance(prompt, str):
        ids = check_ids("prompt", prompt)
        return [ids[i : i + _PART_IDS] for i in range(0, len(ids), _PART_IDS)] or [ids]
    data = prompt.encode()
    parts: list[Prompt] = []
    begin = 0
    while len(data) - begin > _PART_BYTES:
        end = begin + _PART_BYTES
        while data[end] & 0xC0 == 0x80:
            end -= 1
        parts.append(data[begin:end].decode())
        begin = end
    return [*parts, data[begin:].decode()]


def chat_turns(prompt: Prompt, cacheable: bool | None, options: Options) -> list[Any]:
    """Returns the messages of a turn: the server prefills all but the last before an answer begins.
    """
    messages = option_messages(options)
    parts = [prompt_fields(part, cacheable) for part in _prompt_parts(prompt)]
    turns = [{"prompt": part, "more": True} for part in parts[:-1]]
    turns.append({"prompt": parts[-1], **messages})
    return [MESSAGES["ChatRequest"](turn=turn) for turn in turns]


def cancelled_at(position: int) -> Any:
    """Returns the end of a turn that was cancelled between two of its parts."""
    finished = {"reason": FinishReason.CANCELLED, "usage": {"position": position}}
    return MESSAGES["ChatResponse"](finished=finished)


async def file_messages(
    parts: Union[Iterable[bytes], AsyncIterable[bytes]], ttl: float | None
) -> AsyncIterator[Any]:
    """Yields the messages that import a session: parts of a size that a server accepts."""
    message = MESSAGES["SessionBytes"]
    yield message(ttl=duration(ttl))
    async for part in _each(parts):
        for at in range(0, len(part), _FILE_PART_BYTES):
            yield message(data=part[at : at + _FILE_PART_BYTES])


async def _each(parts: Union[Iterable[bytes], AsyncIterable[bytes]]) -> AsyncIterator[bytes]:
    if isinstance(parts, AsyncIterable):
        async for part in parts:
            yield part
    else:
        for part in parts:
            yield part
