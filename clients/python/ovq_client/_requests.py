"""Builds requests and converts responses of ovq.v1, for the blocking and the asyncio client."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ovq_client._messages import MESSAGES, Duration
from ovq_client.types import (
    Conversation, ErrorInfo, Event, Finished, Options, Prompt, Started, TokenChunk, from_message,
)

if TYPE_CHECKING:
    from ovq_client.session_file import Base

# Long prompts of a chat are sent in parts, far below the 4 MiB that a gRPC server accepts in one
# message.
_PART_BYTES = 64 * 1024
_PART_IDS = 16 * 1024
_FILE_PART_BYTES = 1 << 20

_EVENTS = {"started": Started, "chunk": TokenChunk, "finished": Finished}
_OPTION_MESSAGES = {"sampling": "SamplingParams", "stop": "StopConditions", "output": "OutputOptions"}

CHANNEL_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.keepalive_time_ms", 30000)]


def error_info(details: bytes | None) -> ErrorInfo | None:
    message = MESSAGES["ErrorInfo"]()
    for detail in MESSAGES["ErrorStatus"].FromString(details or b"").details:
        if detail.Unpack(message):
            return from_message(ErrorInfo, message)
    return None


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


def prompt_message(prompt: Prompt | None, cacheable: bool | None = None) -> Any:
    if prompt is None:
        return None
    if isinstance(prompt, str):
        return MESSAGES["Prompt"](text=prompt, cacheable=cacheable)
    if isinstance(prompt, Conversation):
        return MESSAGES["Prompt"](conversation=conversation_message(prompt), cacheable=cacheable)
    ids = MESSAGES["TokenIds"](ids=check_ids("prompt", prompt))
    return MESSAGES["Prompt"](token_ids=ids, cacheable=cacheable)


def conversation_message(of: Conversation) -> Any:
    return MESSAGES["Conversation"](
        messages=[
            MESSAGES["ChatMessage"](
                role=check_text("role", role), content=check_text("content", content)
            )
            for role, content in of.messages
        ],
        tools_json=of.tools_json,
        add_generation_prompt=of.add_generation_prompt,
        known=of.known,
    )


def duration(seconds: float | None) -> Any:
    if seconds is None:
        return None
    return Duration(seconds=int(seconds), nanos=round(seconds % 1 * 1e9))


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
    messages = {}
    for field, name in _OPTION_MESSAGES.items():
        known = MESSAGES[name].DESCRIPTOR.fields_by_name
        values = {key: left.pop(key) for key in list(left) if key in known}
        if values:
            messages[field] = MESSAGES[name](**values)
    if left:
        raise TypeError(f"unknown options: {', '.join(sorted(left))}")
    return messages


def event(response: Any) -> Event:
    kind = response.WhichOneof("event")
    return from_message(_EVENTS[kind], getattr(response, kind))


def session_key(session_id: str | None) -> str:
    """Returns the key that keeps a session's calls on its server behind a balancer: a new one
    without an id, else the id's key (ids are KEY.RANDOM if the session was created with a key)."""
    if session_id is None:
        return secrets.token_hex(16)
    found = re.match(r"([A-Za-z0-9_-]+)\.", session_id)
    return found.group(1) if found else ""


def prompt_parts(prompt: Prompt) -> list[Prompt]:
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


def generate(prompt: Prompt | None, cacheable: bool | None, options: Options, **fields: Any) -> Any:
    return MESSAGES["GenerateRequest"](
        prompt=prompt_message(prompt, cacheable), **fields, **option_messages(options)
    )


def chat_open(ttl: float | None, **fields: Any) -> Any:
    return MESSAGES["ChatRequest"](open=MESSAGES["ChatOpen"](ttl=duration(ttl), **fields))


def chat_turn(**fields: Any) -> Any:
    return MESSAGES["ChatRequest"](turn=MESSAGES["ChatTurn"](**fields))


def chat_turns(prompt: Prompt, cacheable: bool | None, options: Options) -> list[Any]:
    """Returns the messages of a turn: the server prefills all but the last before an answer begins.
    """
    messages = option_messages(options)
    *leading, last = prompt_parts(prompt)
    turns = [chat_turn(prompt=prompt_message(part, cacheable), more=True) for part in leading]
    return [*turns, chat_turn(prompt=prompt_message(last, cacheable), **messages)]


def chat_cancel() -> Any:
    return MESSAGES["ChatRequest"](cancel=MESSAGES["CancelTurn"]())


def export_session(session_id: str, since: Base | None) -> Any:
    request = MESSAGES["ExportSessionRequest"](session_id=session_id)
    if since is not None:
        request.since.length, request.since.digest = since
    return request


def session_bytes(part: bytes) -> list[Any]:
    """Splits the bytes into messages of a size that a server accepts."""
    message = MESSAGES["SessionBytes"]
    return [
        message(data=part[at : at + _FILE_PART_BYTES])
        for at in range(0, len(part), _FILE_PART_BYTES)
    ]


def import_begin(ttl: float | None) -> Any:
    return MESSAGES["SessionBytes"](ttl=duration(ttl))
