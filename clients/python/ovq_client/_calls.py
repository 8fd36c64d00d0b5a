"""The calls with one request and one answer: what each sends and what its answer is read as.

Client and AsyncClient have each of these functions as a method (`blocking`, `awaited`), with its
arguments and its text.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ovq_client._messages import MESSAGES
from ovq_client._requests import (
    check_ids,
    check_text,
    conversation_message,
    duration,
    prompt_message,
    session_key,
)
from ovq_client.types import (
    Conversation,
    ModelInfo,
    Prompt,
    Rewound,
    Score,
    Session,
    from_message,
)

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    _P = ParamSpec("_P")

_T = TypeVar("_T")


@dataclass(frozen=True)
class Call(Generic[_T]):
    method: str  # its name in the proto
    request: Any
    read: Callable[[Any], _T]
    session_key: str = ""
    timeout: float | None = None


def blocking(make: Callable[_P, Call[_T]]) -> Callable[Concatenate[Any, _P], _T]:
    """A method of a class with `_call`, which gives the answer."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._call(make(*args, **kwargs))

    return _as_method(method, make)


def awaited(make: Callable[_P, Call[_T]]) -> Callable[Concatenate[Any, _P], Awaitable[_T]]:
    """A method of a class with a coroutine `_call`."""

    async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await self._call(make(*args, **kwargs))

    return _as_method(method, make)


def _as_method(method: Any, make: Any) -> Any:
    functools.update_wrapper(method, make)
    of = inspect.signature(make)
    self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = of.replace(
        parameters=[self, *of.parameters.values()],
        return_annotation=str(of.return_annotation).removeprefix("Call[").removesuffix("]"),
    )
    return method


def _session(answer: Any) -> Session:
    return from_message(Session, answer)


def score(
    prompt: Prompt,
    *,
    memory: str | None = None,
    max_centroids: int | None = None,
    top_logprobs: int | None = None,
    timeout: float | None = None,
) -> Call[Score]:
    """The log-probability of every token of the prompt after its first."""
    request = MESSAGES["ScoreRequest"](
        prompt=prompt_message(prompt),
        memory=memory,
        max_centroids=max_centroids,
        top_logprobs=top_logprobs,
    )
    return Call("Score", request, lambda answer: from_message(Score, answer), timeout=timeout)


def apply_template(conversation: Conversation) -> Call[str]:
    """The text that the model's chat template makes of the conversation."""
    request = MESSAGES["ApplyTemplateRequest"](conversation=conversation_message(conversation))
    return Call("ApplyTemplate", request, lambda answer: answer.text)


def tokenize(text: str, *, add_bos: bool | None = None) -> Call[list[int]]:
    """The ids of a text's tokens."""
    request = MESSAGES["TokenizeRequest"](text=check_text("text", text), add_bos=add_bos)
    return Call("Tokenize", request, lambda answer: list(answer.token_ids))


def detokenize(token_ids: Sequence[int]) -> Call[str]:
    """Bytes that are not valid UTF-8 come back as U+FFFD."""
    request = MESSAGES["DetokenizeRequest"](token_ids=check_ids("token_ids", token_ids))
    return Call("Detokenize", request, lambda answer: answer.text)


def model_info(
    positions: Sequence[int] = (),
    *,
    memory: str | None = None,
    max_centroids: int | None = None,
) -> Call[ModelInfo]:
    """positions: where to report state sizes; the server has defaults. memory: that is asked about,
    the server's first by default."""
    request = MESSAGES["GetModelInfoRequest"](
        positions=positions, memory=memory, max_centroids=max_centroids
    )
    return Call("GetModelInfo", request, lambda answer: from_message(ModelInfo, answer))


def create_session(
    prompt: Prompt | None = None,
    *,
    memory: str | None = None,
    max_centroids: int | None = None,
    ttl: float | None = None,
    keep_tokens: bool | None = None,
    cacheable: bool | None = None,
    timeout: float | None = None,
) -> Call[Session]:
    """A new session that has absorbed the prompt when this returns. memory: one of
    ModelInfo.memories. Without keep_tokens it cannot be rewound. cacheable: as in generate."""
    request = MESSAGES["CreateSessionRequest"](
        prompt=prompt_message(prompt, cacheable),
        memory=memory,
        max_centroids=max_centroids,
        ttl=duration(ttl),
        keep_tokens=keep_tokens,
    )
    return Call("CreateSession", request, _session, session_key(None), timeout)


def get_session(session_id: str) -> Call[Session]:
    """The session as it is now."""
    request = MESSAGES["GetSessionRequest"](session_id=session_id)
    return Call("GetSession", request, _session, session_key(session_id))


def list_page(page_size: int, page_token: str) -> Call[Any]:
    """One page, whose sessions are messages as yet."""
    request = MESSAGES["ListSessionsRequest"](page_size=page_size, page_token=page_token)
    return Call("ListSessions", request, lambda answer: answer)


def fork_session(
    session_id: str, count: int | None = None, *, ttl: float | None = None
) -> Call[list[Session]]:
    """Copies of a session that no call uses, from here on sessions of their own."""
    request = MESSAGES["ForkSessionRequest"](session_id=session_id, count=count, ttl=duration(ttl))
    return Call(
        "ForkSession",
        request,
        lambda answer: [_session(session) for session in answer.sessions],
        session_key(session_id),
    )


def rewind_session(session_id: str, position: int, *, dry_run: bool = False) -> Call[Rewound]:
    """Takes the session back to its first `position` tokens, or only says what that takes."""
    request = MESSAGES["RewindSessionRequest"](
        session_id=session_id, position=position, dry_run=dry_run
    )
    return Call(
        "RewindSession",
        request,
        lambda answer: Rewound(_session(answer.session), answer.replay_tokens),
        session_key(session_id),
    )


def delete_session(session_id: str) -> Call[None]:
    """Ends the session; a call that uses it is cancelled."""
    request = MESSAGES["DeleteSessionRequest"](session_id=session_id)
    return Call("DeleteSession", request, lambda _: None, session_key(session_id))
