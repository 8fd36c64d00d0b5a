"""The blocking Client and Chat, made of those for asyncio: their coroutines run on channels that
block, so they come to their end without ever being suspended."""

from __future__ import annotations

import functools
import inspect
import queue
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio

from ovq_client._errors import OvqError
from ovq_client.aio import AsyncChat, AsyncClient, Connection
from ovq_client.types import Event, Options, Prompt, Session

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec, Unpack

    _P = ParamSpec("_P")

__all__ = ["Chat", "Client", "OvqError"]

_T = TypeVar("_T")


def _run(coroutine: Any) -> Any:
    """Returns the result of a coroutine that is never suspended."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a blocking call was suspended")


def _iterate(items: Any) -> Iterator[Any]:
    """Yields the items of an asynchronous generator that is never suspended."""
    try:
        while True:
            try:
                item = _run(items.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        _run(items.aclose())


class _Stream:
    """A blocking call with a stream of responses, with the methods of one of grpc.aio."""

    def __init__(self, call: Any, *request: Any, **arguments: Any):
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._responses = call(*request or [iter(self._requests.get, None)], **arguments)

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> Any:
        for response in self._responses:
            return response
        raise StopAsyncIteration

    async def read(self) -> Any:
        for response in self._responses:
            return response
        return grpc.aio.EOF

    async def write(self, request: Any) -> None:
        self._requests.put(request)

    async def done_writing(self) -> None:
        self._requests.put(None)

    def cancel(self) -> None:
        self._requests.put(None)  # ends gRPC's thread that reads them
        self._responses.cancel()


class _NoLock:
    """Stands for a lock where nothing is suspended: any thread may write."""

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: Any) -> None:
        pass


async def _sleep(seconds: float) -> None:
    time.sleep(seconds)


def _adapt(kind: str, call: Any) -> Any:
    if kind.endswith("_stream"):
        return functools.partial(_Stream, call)

    async def start(request: Any, **arguments: Any) -> Any:
        return call(request if kind == "unary_unary" else _iterate(request), **arguments)

    return start


def _twin(method: Any, convert: Callable[[Any], Any]) -> Any:
    """Makes the blocking twin of a method, which converts what the method returns."""

    def twin(self: Any, *args: Any, **kwargs: Any) -> Any:
        return convert(method(self, *args, **kwargs))

    functools.update_wrapper(twin, method)
    signature = inspect.signature(method)
    returns = signature.return_annotation.replace("Async", "")
    setattr(twin, "__signature__", signature.replace(return_annotation=returns))
    twin.__qualname__ = method.__qualname__.replace("Async", "")
    return twin


def _blocking(
    method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[Any, _P], _T]:
    return _twin(method, _run)


def _iterated(
    method: Callable[Concatenate[Any, _P], AsyncIterator[_T]],
) -> Callable[Concatenate[Any, _P], Iterator[_T]]:
    return _twin(method, _iterate)


class Chat:
    """One live conversation on one stream; made by Client.chat. Use it on one thread, except
    cancel()."""

    def __init__(self, chat: AsyncChat):
        self._chat = chat
        _run(chat.__aenter__())
        #: The session as it was opened.
        self.session: Session = chat.session

    def __enter__(self) -> Chat:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        _run(self._chat.__aexit__(kind, error, trace))

    def send(
        self, prompt: Prompt, *, cacheable: bool | None = None, **options: Unpack[Options]
    ) -> Iterator[Event]:
        """Sends a turn and returns its events. Read them to the end, or call cancel() and then read
        on, before the next turn."""
        return _iterate(self._chat._events(_run(self._chat._begin(prompt, cacheable, options))))

    def cancel(self) -> None:
        """Ends the running turn: its events end with a Finished. Callable from any thread."""
        _run(self._chat.cancel())


def _opened(
    method: Callable[Concatenate[Any, _P], AsyncChat],
) -> Callable[Concatenate[Any, _P], Chat]:
    return _twin(method, Chat)


class Client(Connection):
    """A connection to one server. Thread-safe; every method but chat may raise OvqError.

    timeout: seconds for the whole call, delays before retries included; None waits for ever."""

    _grpc: Any = grpc
    _sleep: Any = staticmethod(_sleep)
    _lock: Any = _NoLock
    _adapt: Any = staticmethod(_adapt)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    generate = _iterated(AsyncClient.generate)
    generate_as = _blocking(AsyncClient.generate_as)
    chat = _opened(AsyncClient.chat)
    score = _blocking(AsyncClient.score)
    apply_template = _blocking(AsyncClient.apply_template)
    tokenize = _blocking(AsyncClient.tokenize)
    detokenize = _blocking(AsyncClient.detokenize)
    model_info = _blocking(AsyncClient.model_info)
    create_session = _blocking(AsyncClient.create_session)
    get_session = _blocking(AsyncClient.get_session)
    list_sessions = _iterated(AsyncClient.list_sessions)
    fork_session = _blocking(AsyncClient.fork_session)
    rewind_session = _blocking(AsyncClient.rewind_session)
    delete_session = _blocking(AsyncClient.delete_session)
    export_session = _iterated(AsyncClient.export_session)
    import_session = _blocking(AsyncClient.import_session)
