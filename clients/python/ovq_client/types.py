"""Arguments and results of the client. Results are dataclasses with the fields of their messages in
ovq.v1, where proto/ovq/v1/inference.proto explains each.

Durations are seconds, timestamps are aware datetimes in UTC, lists are tuples, absent optional
fields are None."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timezone
from typing import TYPE_CHECKING, Any, TypedDict, Union

from google.protobuf.descriptor import FieldDescriptor

from ovq_client._messages import MESSAGES
from ovq_client.constraint import Constraint

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
    constraint: Constraint
    max_tokens: int
    stop_strings: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    min_tokens: int
    include_stop_text: bool
    logprobs: bool
    top_logprobs: int
    speculation: Speculation
    parts: bool
    single_call: bool


class FinishReason(enum.IntEnum):
    UNSPECIFIED = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3


_RECORDS: dict[str, type] = {}


class _Record:
    """Makes of each subclass a frozen dataclass with the fields of the message that has its name, or
    of `message`."""

    def __init_subclass__(cls, message: str = "") -> None:
        name = message or cls.__name__
        cls.__annotations__ = dict.fromkeys(MESSAGES[name].DESCRIPTOR.fields_by_name, Any)
        _RECORDS[name] = dataclass(frozen=True)(cls)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class TopLogprobs(_Record):
    """Candidates, best first; ties: the lower id first."""


class Started(_Record):
    """An answer begins."""


class AnswerPart(_Record):
    """A piece of an answer: one of its fields is set."""


class TokenChunk(_Record):
    """Tokens of an answer, with their text or, with `parts`, what it is made of."""


class Usage(_Record):
    """Counts and times of an answer."""


class Finished(_Record):
    """A completion ended."""


#: Events of an answer: one Started, TokenChunks, and one Finished for each completion.
Event = Union[Started, TokenChunk, Finished]


class Score(_Record, message="ScoreResponse"):
    """Log-probabilities of a text; logprobs[i] belongs to token i+1 given tokens 0..i."""


class StateSize(_Record):
    """Bytes of a session's state at a position."""


class RequestLimits(_Record):
    """Upper limits of a request's fields."""


class ErrorInfo(_Record):
    """Machine-readable details of an error: the field of a bad value, the reason of a refusal."""


class ModelInfo(_Record):
    """The served model and its server."""


class TurnEnd(_Record):
    """The end of a turn, to which a session can be rewound."""


class Session(_Record):
    """A session as the server describes it; `turns` comes from get_session only."""


class Rewound(_Record, message="RewindSessionResponse"):
    """A rewound session, and the tokens that were, or are to be, prefilled again."""


def from_message(message: Any) -> Any:
    """Converts a message to its dataclass, field by field."""
    fields = message.DESCRIPTOR.fields
    return _RECORDS[message.DESCRIPTOR.name](*(_field(message, field) for field in fields))


def _field(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.label == FieldDescriptor.LABEL_REPEATED:
        return tuple(_plain(field, item) for item in value)
    nested = field.message_type is not None and field.message_type.name in _RECORDS
    if field.has_presence and not nested and not message.HasField(field.name):
        return None
    return _plain(field, value)


def _plain(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        return FinishReason(value)
    if field.message_type is None:
        return value
    if field.message_type.name == "Duration":
        return value.ToTimedelta().total_seconds()
    if field.message_type.name == "Timestamp":
        return value.ToDatetime(tzinfo=timezone.utc)
    return from_message(value)
