"""Client and Chat for asyncio: the same calls, to be awaited and read with `async for`.

    from ovq_client import TokenChunk
    from ovq_client.aio import AsyncClient

    async with AsyncClient("127.0.0.1:50051") as client:
        async for event in client.generate("import os", max_tokens=64):
            if isinstance(event, TokenChunk):
                print(event.text, end="", flush=True)

Options, events and errors are those of the methods with the same names in ovq_client.client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio

from ovq_client import _calls, _requests
from ovq_client._calls import Call, awaited
from ovq_client.client import Connection, OvqError, Retries, is_gone, ovq_errors
from ovq_client.types import Event, Finished, Options, Prompt, Session, from_message

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ovq_client.session_file import Base

_T = TypeVar("_T")


class AsyncChat:
    """One live conversation on one stream; made by AsyncClient.chat, used with `async with`."""

    def __init__(self, stub: Any, open_request: Any, session_key: str):
        self._stub = stub
        self._open = open_request
        self._key = session_key
        self._running = False
        self._call: Any = None
        #: The session as it was opened; inside `async with`.
        self.session: Session

    async def __aenter__(self) -> AsyncChat:
        self._call = self._stub.Chat(session_key=self._key)
        try:
            await self._write(self._open)
            self.session = from_message(Session, (await self._read()).opened.session)
        except BaseException:
            self._call.cancel()
            raise
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None or self._running:
            self._call.cancel()
            return
        try:
            with ovq_errors():
                await self._call.done_writing()
                while await self._call.read() is not grpc.aio.EOF:
                    pass
        except OvqError as error_of_end:
            if not is_gone(error_of_end):
                raise

    async def send(
        self, prompt: Prompt, *, cacheable: bool | None = None, **options: Unpack[Options]
    ) -> AsyncIterator[Event]:
        """Sends a turn and yields its events. Read them to the end, or call cancel() and then read
        on, before the next turn."""
        if self._running:
            raise RuntimeError("a turn is running: read its events to the end first")
        *leading, last = _requests.chat_turns(prompt, cacheable, options)
        self._running = True
        for turn in leading:
            await self._write(turn)
            response = await self._read()
            if response.WhichOneof("event") == "finished":  # another task has cancelled the turn
                self._running = False
                yield _requests.event(response)
                return
        await self._write(last)
        while self._running:
            event = _requests.event(await self._read())
            self._running = not isinstance(event, Finished)
            yield event

    async def cancel(self) -> None:
        """Ends the running turn: its events end with a Finished. Callable from any task."""
        await self._write(_requests.chat_cancel())

    async def _write(self, request: Any) -> None:
        with ovq_errors():
            await self._call.write(request)

    async def _read(self) -> Any:
        with ovq_errors():
            response = await self._call.read()
        if response is grpc.aio.EOF:
            raise OvqError(grpc.StatusCode.UNKNOWN, "the server ended the conversation")
        return response


class AsyncClient(Connection):
    """A connection to one server, for the tasks of one event loop. timeout and retries are as in
    Client."""

    _grpc = grpc.aio

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close()

    async def _call(self, call: Call[_T]) -> _T:
        send = getattr(self._stub, call.method)
        retries = Retries(self._retries, call.timeout)
        while True:
            try:
                with ovq_errors():
                    answer = await send(
                        call.request, timeout=retries.timeout(), session_key=call.session_key
                    )
                    return call.read(answer)
            except OvqError as error:
                wait = retries.wait_after(error)
                if wait is None:
                    raise
                await asyncio.sleep(wait)

    async def generate(
        self,
        prompt: Prompt | None = None,
        *,
        session_id: str | None = None,
        memory: str | None = None,
        max_centroids: int | None = None,
        cacheable: bool | None = None,
        expected_position: int | None = None,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> AsyncIterator[Event]:
        request = _requests.generate(
            prompt, cacheable, options, session_id=session_id, memory=memory,
            max_centroids=max_centroids, expected_position=expected_position,
        )
        key = _requests.session_key(session_id) if session_id else ""
        retries = Retries(self._retries, timeout)
        begun = False
        while True:
            call = self._stub.Generate(request, timeout=retries.timeout(), session_key=key)
            try:
                with ovq_errors():
                    async for response in call:
                        begun = True
                        yield _requests.event(response)
                return
            except OvqError as error:
                wait = None if begun else retries.wait_after(error)
                if wait is None:
                    raise
                await asyncio.sleep(wait)
            finally:
                call.cancel()

    def chat(
        self,
        *,
        session_id: str | None = None,
        memory: str | None = None,
        max_centroids: int | None = None,
        keep_session: bool | None = None,
        ttl: float | None = None,
    ) -> AsyncChat:
        return AsyncChat(
            self._stub,
            _requests.chat_open(
                ttl, session_id=session_id, memory=memory, max_centroids=max_centroids,
                keep_session=keep_session,
            ),
            _requests.session_key(session_id),
        )

    score = awaited(_calls.score)
    apply_template = awaited(_calls.apply_template)
    tokenize = awaited(_calls.tokenize)
    detokenize = awaited(_calls.detokenize)
    model_info = awaited(_calls.model_info)
    create_session = awaited(_calls.create_session)
    get_session = awaited(_calls.get_session)
    fork_session = awaited(_calls.fork_session)
    rewind_session = awaited(_calls.rewind_session)
    delete_session = awaited(_calls.delete_session)

    async def list_sessions(self, page_size: int = 0) -> AsyncIterator[Session]:
        token = ""
        while True:
            page = await self._call(_calls.list_page(page_size, token))
            for session in page.sessions:
                yield from_message(Session, session)
            token = page.next_page_token
            if not token:
                return

    async def export_session(
        self, session_id: str, *, since: Base | None = None
    ) -> AsyncIterator[bytes]:
        request = _requests.export_session(session_id, since)
        key = _requests.session_key(session_id)
        with ovq_errors():
            async for part in self._stub.ExportSession(request, session_key=key):
                yield part.data

    async def import_session(
        self, parts: AsyncIterable[bytes], *, ttl: float | None = None
    ) -> Session:
        async def messages() -> AsyncIterator[Any]:
            yield _requests.import_begin(ttl)
            async for part in parts:
                for message in _requests.session_bytes(part):
                    yield message

        key = _requests.session_key(None)
        with ovq_errors():
            session = await self._stub.ImportSession(messages(), session_key=key)
        return from_message(Session, session)
