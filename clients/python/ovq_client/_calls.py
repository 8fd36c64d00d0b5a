"""Unary calls of ovq.v1: each builds its request and converts the response.

Client and AsyncClient have each of these functions as a method (made by `blocking` and `awaited`),
with its arguments and docstring."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ovq_client._messages import MESSAGES
from ovq_client._requests import (
    check_ids, check_text, conversation_message, duration, prompt_message, session_key,
)
from ovq_client.types import Conversation, ModelInfo, Prompt, Rewound, Score, Session, from_message

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    _P = ParamSpec("_P")

_T = TypeVar("_T")


@dataclass(frozen=True)
class Call(Generic[_T]):
    method: str  # the method's name in the proto
    request: Any
    read: Callable[[Any], _T]
    session_key: str = ""
    timeout: float | None = None


def blocking(make: Callable[_P, Call[_T]]) -> Callable[Concatenate[Any, _P], _T]:
    """Makes a method of a class whose `_call` returns the response."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._call(make(*args, **kwargs))

    return _as_method(method, make)


def awaited(make: Callable[_P, Call[_T]]) -> Callable[Concatenate[Any, _P], Awaitable[_T]]:
    """Makes a method of a class whose `_call` is a coroutine."""

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
    """Returns the log-probability of every token of the prompt after its first."""
    request = MESSAGES["ScoreRequest"](
        prompt=prompt_message(prompt),
        memory=memory,
        max_centroids=max_centroids,
        top_logprobs=top_logprobs,
    )
    return Call("Score", request, lambda answer: from_message(Score, answer), timeout=timeout)


def apply_template(conversation: Conversation) -> Call[str]:
    """Returns the conversation as text, formatted by the model's chat template."""
    request = MESSAGES["ApplyTemplateRequest"](conversation=conversation_message(conversation))
    return Call("ApplyTemplate", request, lambda answer: answer.text)


def tokenize(text: str, *, add_bos: bool | None = None) -> Call[list[int]]:
    """Returns the token ids of a text."""
    request = MESSAGES["TokenizeRequest"](text=check_text("text", text), add_bos=add_bos)
    return Call("Tokenize", request, lambda answer: list(answer.token_ids))


def detokenize(token_ids: Sequence[int]) -> Call[str]:
    """Returns the text of token ids; bytes that are not valid UTF-8 become U+FFFD."""
    request = MESSAGES["DetokenizeRequest"](token_ids=check_ids("token_ids", token_ids))
    return Call("Detokenize", request, lambda answer: answer.text)


def model_info(
    positions: Sequence[int] = (),
    *,
    memory: str | None = None,
    max_centroids: int | None = None,
) -> Call[ModelInfo]:
    """Describes the model. positions: where to report state sizes; by default the server chooses.
    memory: name of the model variant to describe; by default the server's first."""
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
    """Creates a session and returns it once the prompt is prefilled. memory: one of
    ModelInfo.memories. A session without keep_tokens cannot be rewound. cacheable: as in generate.
    """
    request = MESSAGES["CreateSessionRequest"](
        prompt=prompt_message(prompt, cacheable),
        memory=memory,
        max_centroids=max_centroids,
        ttl=duration(ttl),
        keep_tokens=keep_tokens,
    )
    return Call("CreateSession", request, _session, session_key(None), timeout)


def get_session(session_id: str) -> Call[Session]:
    """Returns the session's current state."""
    request = MESSAGES["GetSessionRequest"](session_id=session_id)
    return Call("GetSession", request, _session, session_key(session_id))


def list_page(page_size: int, page_token: str) -> Call[Any]:
    """Returns one page of sessions, not yet converted to dataclasses."""
    request = MESSAGES["ListSessionsRequest"](page_size=page_size, page_token=page_token)
    return Call("ListSessions", request, lambda answer: answer)


def fork_session(
    session_id: str, count: int | None = None, *, ttl: float | None = None
) -> Call[list[Session]]:
    """Makes copies of a session that no call uses; they are independent sessions from then on."""
    request = MESSAGES["ForkSessionRequest"](session_id=session_id, count=count, ttl=duration(ttl))
    return Call(
        "ForkSession",
        request,
        lambda answer: [_session(session) for session in answer.sessions],
        session_key(session_id),
    )


def rewind_session(session_id: str, position: int, *, dry_run: bool = False) -> Call[Rewound]:
    """Takes the session back to its first `position` tokens; dry_run only reports the cost."""
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
    """Deletes the session; a call that uses it is cancelled."""
    request = MESSAGES["DeleteSessionRequest"](session_id=session_id)
    return Call("DeleteSession", request, lambda _: None, session_key(session_id))
