"""Arguments and results of the client: plain dataclasses named like the messages of ovq.v1.

Durations are seconds, timestamps are aware datetimes in UTC, absent optional fields are None."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from typing import Any, TypedDict, TypeVar, Union

from google.protobuf.descriptor import FieldDescriptor

__all__ = [
    "Conversation", "ErrorInfo", "Event", "Finished", "FinishReason", "ModelInfo", "Options",
    "Prompt", "RequestLimits", "Rewound", "Score", "Session", "Speculation", "Started", "StateSize",
    "TokenChunk", "TopLogprobs", "TurnEnd", "Usage",
]


@dataclass(frozen=True)
class Conversation:
    """Messages such as ("user", "Hi"), which the model's chat template formats. tools_json: a JSON
    list of callable tools. known: how many of the messages the session holds already, its answers
    included."""

    messages: Sequence[tuple[str, str]]
    tools_json: str = ""
    add_generation_prompt: bool = True
    known: int = 0


#: Text, token ids that are used as they are, or a conversation.
Prompt = Union[str, Sequence[int], Conversation]


class Speculation(enum.IntEnum):
    """Whether the server drafts tokens; answers are the same either way."""

    UNSPECIFIED = 0  # the server's --speculate
    OFF = 1
    NGRAM = 2


class Options(TypedDict, total=False):
    """Fields of SamplingParams, StopConditions and OutputOptions; absent ones take the server's
    defaults, which the proto lists."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    logit_bias: dict[int, float]
    n: int
    max_tokens: int
    stop_strings: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    min_tokens: int
    include_stop_text: bool
    logprobs: bool
    top_logprobs: int
    speculation: Speculation


class FinishReason(enum.IntEnum):
    UNSPECIFIED = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3


@dataclass(frozen=True)
class TopLogprobs:
    """Candidates, best first; ties: the lower id first."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Started:
    session_id: str
    prompt_tokens: int
    cached_tokens: int
    seed: int
    position: int


@dataclass(frozen=True)
class TokenChunk:
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[TopLogprobs, ...]
    index: int


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    state_bytes: int
    queue_time: float | None
    prefill_time: float | None
    decode_time: float | None
    position: int
    merged_tokens: int
    drafted_tokens: int
    accepted_tokens: int


@dataclass(frozen=True)
class Finished:
    reason: FinishReason
    usage: Usage
    index: int
    matched_stop: str
    matched_token_id: int | None


# : Events of an answer: one Started, TokenChunks, and one Finished for each completion.
Event = Union[Started, TokenChunk, Finished]


@dataclass(frozen=True)
class Score:
    """Log-probabilities of a text; logprobs[i] belongs to token i+1 given tokens 0..i."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[TopLogprobs, ...]


@dataclass(frozen=True)
class StateSize:
    position: int
    state_bytes: int
    full_kv_cache_bytes: int


@dataclass(frozen=True)
class RequestLimits:
    max_completions: int
    max_stop_strings: int
    max_stop_string_bytes: int
    max_top_logprobs: int
    min_centroids: int
    max_ttl: float | None
    max_page_size: int
    max_messages: int
    max_role_bytes: int
    max_tools_bytes: int
    max_stop_token_ids: int
    max_logit_bias: int


@dataclass(frozen=True)
class ErrorInfo:
    """Machine-readable details of an error: the field of a bad value, the reason of a refusal."""

    field: str
    reason: str
    bytes_needed: int | None
    bytes_free: int | None
    retry_after: float | None
    position: int | None


@dataclass(frozen=True)
class ModelInfo:
    name: str
    fingerprint: str
    vocab_size: int
    hidden_size: int
    layer_types: tuple[str, ...]
    parameters: int
    default_max_centroids: int
    max_centroids_limit: int
    state_sizes: tuple[StateSize, ...]
    state_bytes_cap: int
    has_tokenizer: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    device: str
    compute_dtype: str
    state_dtype: str
    state_memory_bytes: int
    max_sessions: int
    max_prompt_tokens: int
    server_version: str
    limits: RequestLimits
    tokenizer: str
    has_chat_template: bool
    memory: str
    exact_tokens: int | None
    memories: tuple[str, ...]
    weights: str


@dataclass(frozen=True)
class TurnEnd:
    position: int
    replay_tokens: int  # tokens that a rewind to this checkpoint prefills again


@dataclass(frozen=True)
class Session:
    session_id: str
    position: int
    max_centroids: int
    state_bytes: int
    state_bytes_cap: int
    live_centroids: int
    busy: bool
    created: datetime | None
    last_used: datetime | None
    expires: datetime | None
    prompt_tokens_total: int
    generated_tokens_total: int
    memory: str
    keeps_tokens: bool
    turns: tuple[TurnEnd, ...]  # only from get_session
    durable: bool
    hibernated: bool
    damaged_at: int | None  # position where the model's output was not finite


@dataclass(frozen=True)
class Rewound:
    session: Session
    replay_tokens: int  # tokens prefilled again, or to be prefilled again


_T = TypeVar("_T")
_NESTED = {cls.__name__: cls for cls in (TopLogprobs, TurnEnd, Usage, StateSize, RequestLimits)}


def from_message(cls: type[_T], message: Any) -> _T:
    """Converts a message to the dataclass `cls` of the same name, field by field."""
    return cls(**{field.name: _field(message, field.name) for field in fields(cls)})


def _field(message: Any, name: str) -> Any:
    descriptor = message.DESCRIPTOR.fields_by_name[name]
    value = getattr(message, name)
    if descriptor.label == FieldDescriptor.LABEL_REPEATED:
        return tuple(_plain(descriptor, item) for item in value)
    nested = descriptor.message_type is not None and descriptor.message_type.name in _NESTED
    if descriptor.has_presence and not nested and not message.HasField(name):
        return None
    return _plain(descriptor, value)


def _plain(descriptor: Any, value: Any) -> Any:
    if descriptor.enum_type is not None:
        return FinishReason(value)
    if descriptor.message_type is None:
        return value
    kind = descriptor.message_type.name
    if kind == "Duration":
        return value.ToTimedelta().total_seconds()
    if kind == "Timestamp":
        return value.ToDatetime(tzinfo=timezone.utc)
    return from_message(_NESTED[kind], value)
