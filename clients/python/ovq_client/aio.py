"""The client for asyncio: its calls are awaited or read with `async for`.

    from ovq_client import TokenChunk
    from ovq_client.aio import AsyncClient

    async with AsyncClient("127.0.0.1:50051") as client:
        async for event in client.generate("import os", max_tokens=64):
            if isinstance(event, TokenChunk):
                print(event.text, end="", flush=True)

ovq_client.client makes the blocking Client and Chat of the classes here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Union

import grpc
import grpc.aio

from ovq_client._errors import OvqError, Retries, ovq_errors
from ovq_client._messages import MESSAGES, REQUESTS, Stub
from ovq_client._requests import (
    cancelled_at, chat_turns, check_ids, check_text, conversation_fields, duration, file_messages,
    option_messages, prompt_fields, session_key,
)
from ovq_client.constraint import Constraint, UnfinishedAnswer, parse_answer
from ovq_client.types import (
    Conversation, Event, Finished, FinishReason, ModelInfo, Options, Prompt, Rewound, Score, Session,
    TokenChunk, from_message,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ovq_client.session_file import Base

_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 30000),
    # gRPC would send two pings and then none until it has data to send.
    ("grpc.http2.max_pings_without_data", 0),
]


def _event(response: Any) -> Any:
    return from_message(getattr(response, response.WhichOneof("event")))


class AsyncChat:
    """One live conversation on one stream; made by AsyncClient.chat, used with `async with`."""

    def __init__(self, stub: Any, open_request: Any, session_key: str, make_lock: Any):
        self._stub = stub
        self._open = open_request
        self._key = session_key
        self._make_lock = make_lock
        self._running = False
        self._cancelled = False  # the running turn, before all of it was sent
        self._ended = False  # the call, as a read has found
        self._call: Any = None
        #: The session as it was opened; inside `async with`.
        self.session: Session

    async def __aenter__(self) -> AsyncChat:
        self._call = self._stub.Chat(session_key=self._key)
        self._writing = self._make_lock()  # grpc.aio loses one of two writes at a time
        try:
            await self._write(self._open)
            self.session = from_message((await self._read()).opened.session)
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
            # All answers have arrived, so a server that drains or has gone away is no error.
            if error_of_end.code != grpc.StatusCode.UNAVAILABLE:
                raise

    async def send(
        self, prompt: Prompt, *, cacheable: bool | None = None, **options: Unpack[Options]
    ) -> AsyncIterator[Event]:
        """Sends a turn and yields its events. Read them to the end, or call cancel() and then read
        on, before the next turn."""
        async for event in self._events(await self._begin(prompt, cacheable, options)):
            yield event

    async def _begin(self, prompt: Prompt, cacheable: bool | None, options: Options) -> list[Any]:
        """Sends a turn and returns its first responses: the last one, if it was cancelled before
        all of it was sent."""
        if self._running and not self._ended:
            raise RuntimeError("a turn is running: read its events to the end first")
        *leading, last = chat_turns(prompt, cacheable, options)
        self._running, self._cancelled = True, False
        for turn in leading:
            await self._write(turn)
            response = await self._read()
            if response.WhichOneof("event") == "finished":  # another task has cancelled the turn
                return [response]
            if self._cancelled:  # too late for this part: the server has forgotten it
                return [cancelled_at(response.absorbed.position)]
        await self._write(last)
        if self._cancelled:
            await self._write(MESSAGES["ChatRequest"](cancel={}))
        return []

    async def _events(self, responses: list[Any]) -> AsyncIterator[Event]:
        while self._running:
            event = _event(responses.pop() if responses else await self._read())
            self._running = not isinstance(event, Finished)
            yield event

    async def cancel(self) -> None:
        """Ends the running turn: its events end with a Finished. Callable from any task, of a
        blocking Chat from any thread."""
        # The server forgets a cancel that comes between two parts of a turn.
        self._cancelled = True
        await self._write(MESSAGES["ChatRequest"](cancel={}))

    async def _write(self, request: Any) -> None:
        try:
            with ovq_errors():
                async with self._writing:
                    await self._call.write(request)
        except asyncio.InvalidStateError:  # the call has ended, and reading says why
            await self._read()

    async def _read(self) -> Any:
        try:
            with ovq_errors():
                response = await self._call.read()
            if response is grpc.aio.EOF:
                raise OvqError(grpc.StatusCode.UNKNOWN, "the server ended the conversation")
        except OvqError:
            self._ended = True  # a further turn fails with the same error
            raise
        return response


class Connection:
    """A channel and the calls on it, for both clients."""

    # The blocking client has others.
    _grpc: Any = grpc.aio
    _sleep: Any = staticmethod(asyncio.sleep)
    _lock: Any = asyncio.Lock
    _adapt: Any = staticmethod(lambda kind, call: call)

    def __init__(
        self,
        address: str = "127.0.0.1:50051",
        *,
        tls_ca: bytes | None = None,
        tls_cert: bytes | None = None,
        tls_key: bytes | None = None,
        token: str | None = None,
        metadata: Sequence[tuple[str, str]] = (),
        retries: int = 3,
    ):
        """tls_*: contents of PEM files. TLS is used if tls_ca or tls_cert is given; without tls_ca
        the server's certificate is verified against the authorities that gRPC knows. metadata: sent
        with every call, such as ("traceparent", ...). retries: how often a call other than chat,
        export_session and import_session is sent again if the server refuses it and names a delay;
        the client waits for that delay."""
        if (tls_cert is None) != (tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        if tls_ca is None and tls_cert is None:
            self._channel = self._grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(tls_ca, tls_key, tls_cert)
            self._channel = self._grpc.secure_channel(address, credentials, _CHANNEL_OPTIONS)
        secret = () if token is None else (("authorization", f"Bearer {token}"),)
        self._stub: Any = Stub(self._channel, (*metadata, *secret), self._adapt)
        self._retries = retries

    async def _call(
        self, method: str, *, key: str = "", timeout: float | None = None, **fields: Any
    ) -> Any:
        request = REQUESTS[method](**fields)
        if "session_id" in fields:
            key = session_key(fields["session_id"])
        retries = Retries(self._retries, timeout, self._sleep)
        while True:
            try:
                with ovq_errors():
                    return await getattr(self._stub, method)(
                        request, timeout=retries.timeout(), session_key=key
                    )
            except OvqError as error:
                await retries.wait_after(error)

    async def _stream(self, request: Any, timeout: float | None) -> AsyncIterator[Event]:
        key = session_key(request.session_id) if request.session_id else ""
        retries = Retries(self._retries, timeout, self._sleep)
        begun = False
        while True:
            call = self._stub.Generate(request, timeout=retries.timeout(), session_key=key)
            try:
                with ovq_errors():
                    async for response in call:
                        begun = True
                        yield _event(response)
                return
            except OvqError as error:
                if begun:
                    raise
                await retries.wait_after(error)
            finally:
                call.cancel()


class AsyncClient(Connection):
    """A connection to one server, for the tasks of one event loop; every method but chat may raise
    OvqError.

    timeout: seconds for the whole call, delays before retries included; None waits for ever."""

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close()

    def generate(
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
        """Streams one answer. Without session_id its state ends with the call. Closing the iterator
        cancels the call. cacheable: whether the server may keep the states after the prompt and its
        answer for later prompts that begin alike; by default it does for a conversation, of a
        session's first one for the system part alone, and not for other prompts.
        expected_position: the number of tokens that the session must have; otherwise the call is
        refused and the error's info has the true number, so a call whose answer was lost can be
        sent again safely."""
        request = REQUESTS["Generate"](
            prompt=prompt_fields(prompt, cacheable), session_id=session_id, memory=memory,
            max_centroids=max_centroids, expected_position=expected_position,
            **option_messages(options),
        )
        return self._stream(request, timeout)

    async def generate_as(
        self, constraint: Constraint, prompt: Prompt | None = None, **arguments: Any
    ) -> Any:
        """Returns one answer as what the constraint asks for: an instance of a dataclass or of a
        pydantic model class, the JSON value of a schema, or a text. arguments: those of generate.
        Of a conversation's answer reasoning is left out. UnfinishedAnswer: it was too long."""
        if isinstance(prompt, Conversation):
            arguments["parts"] = True
        text, finished = "", None
        # Not self.generate, of which the blocking client has a twin.
        events = AsyncClient.generate(self, prompt, constraint=constraint, **arguments)
        async for event in events:
            if isinstance(event, TokenChunk):
                text += event.text + "".join(part.content or "" for part in event.parts)
            elif isinstance(event, Finished):
                finished = event.reason
        if finished != FinishReason.STOP:
            raise UnfinishedAnswer(text)
        return parse_answer(constraint, text)

    def chat(
        self,
        *,
        session_id: str | None = None,
        memory: str | None = None,
        max_centroids: int | None = None,
        keep_session: bool | None = None,
        ttl: float | None = None,
        keep_tokens: bool | None = None,
    ) -> AsyncChat:
        """Opens a conversation; use it in a `with` statement. A new session ends with it unless
        keep_session is set. ttl: idle seconds after which a kept session is deleted. keep_tokens: as
        in create_session."""
        fields = {
            "session_id": session_id, "memory": memory, "max_centroids": max_centroids,
            "keep_session": keep_session, "ttl": duration(ttl), "keep_tokens": keep_tokens,
        }
        key = session_key(session_id)
        return AsyncChat(self._stub, MESSAGES["ChatRequest"](open=fields), key, self._lock)

    async def score(
        self,
        prompt: Prompt,
        *,
        memory: str | None = None,
        max_centroids: int | None = None,
        top_logprobs: int | None = None,
        timeout: float | None = None,
    ) -> Score:
        """Returns the log-probability of every token of the prompt after its first."""
        return from_message(await self._call(
            "Score", timeout=timeout, prompt=prompt_fields(prompt), memory=memory,
            max_centroids=max_centroids, top_logprobs=top_logprobs,
        ))

    async def apply_template(self, conversation: Conversation) -> str:
        """Returns the conversation as text, formatted by the model's chat template."""
        fields = conversation_fields(conversation)
        return (await self._call("ApplyTemplate", conversation=fields)).text

    async def tokenize(self, text: str, *, add_bos: bool | None = None) -> list[int]:
        """Returns the token ids of a text."""
        answer = await self._call("Tokenize", text=check_text("text", text), add_bos=add_bos)
        return list(answer.token_ids)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Returns the text of token ids; bytes that are not valid UTF-8 become U+FFFD."""
        return (await self._call("Detokenize", token_ids=check_ids("token_ids", token_ids))).text

    async def model_info(
        self,
        positions: Sequence[int] = (),
        *,
        memory: str | None = None,
        max_centroids: int | None = None,
    ) -> ModelInfo:
        """Describes the model. positions: where to report state sizes; by default the server
        chooses. memory: name of the model variant to describe; by default the server's first."""
        return from_message(await self._call(
            "GetModelInfo", positions=positions, memory=memory, max_centroids=max_centroids
        ))

    async def create_session(
        self,
        prompt: Prompt | None = None,
        *,
        memory: str | None = None,
        max_centroids: int | None = None,
        ttl: float | None = None,
        keep_tokens: bool | None = None,
        cacheable: bool | None = None,
        timeout: float | None = None,
    ) -> Session:
        """Creates a session and returns it once the prompt is prefilled. memory: one of
        ModelInfo.memories. A session without keep_tokens cannot be rewound. cacheable: as in
        generate."""
        return from_message(await self._call(
            "CreateSession", key=session_key(None), timeout=timeout,
            prompt=prompt_fields(prompt, cacheable), memory=memory, max_centroids=max_centroids,
            ttl=duration(ttl), keep_tokens=keep_tokens,
        ))

    async def get_session(self, session_id: str) -> Session:
        """Returns the session's current state."""
        return from_message(await self._call("GetSession", session_id=session_id))

    async def list_sessions(self, page_size: int = 0) -> AsyncIterator[Session]:
        """Yields all sessions, fetched page by page. page_size 0: the server's default."""
        token = ""
        while True:
            page = await self._call("ListSessions", page_size=page_size, page_token=token)
            for session in page.sessions:
                yield from_message(session)
            token = page.next_page_token
            if not token:
                return

    async def fork_session(
        self, session_id: str, count: int | None = None, *, ttl: float | None = None
    ) -> list[Session]:
        """Makes copies of a session that no call uses; they are independent sessions from then on.
        """
        answer = await self._call(
            "ForkSession", session_id=session_id, count=count, ttl=duration(ttl)
        )
        return [from_message(session) for session in answer.sessions]

    async def rewind_session(
        self, session_id: str, position: int, *, dry_run: bool = False
    ) -> Rewound:
        """Takes the session back to its first `position` tokens; dry_run only reports the cost."""
        return from_message(await self._call(
            "RewindSession", session_id=session_id, position=position, dry_run=dry_run
        ))

    async def delete_session(self, session_id: str) -> None:
        """Deletes the session; a call that uses it is cancelled."""
        await self._call("DeleteSession", session_id=session_id)

    async def export_session(
        self, session_id: str, *, since: Base | None = None
    ) -> AsyncIterator[bytes]:
        """Yields the session as a file of docs/session-format.md, in parts. With the `base` of an
        earlier file (session_file.read) it is a delta, to be applied by session_file.join."""
        request = REQUESTS["ExportSession"](session_id=session_id, since=since and since._asdict())
        with ovq_errors():
            async for part in self._stub.ExportSession(
                request, session_key=session_key(session_id)
            ):
                yield part.data

    async def import_session(
        self,
        parts: Union[Iterable[bytes], AsyncIterable[bytes]],
        *,
        ttl: float | None = None,
    ) -> Session:
        """Creates a session from an exported file."""
        with ovq_errors():
            return from_message(await self._stub.ImportSession(
                file_messages(parts, ttl), session_key=session_key(None)
            ))
