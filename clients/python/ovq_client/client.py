"""Client and Chat: the calls of ovq.v1 as methods. Unary calls are defined in _calls.py."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from ovq_client import _calls, _requests
from ovq_client._calls import Call, blocking
from ovq_client._messages import Stub
from ovq_client.types import ErrorInfo, Event, Finished, Options, Prompt, Session, from_message

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ovq_client.session_file import Base

_T = TypeVar("_T")


class OvqError(Exception):
    """A call failed: `code` is the gRPC status code, `message` the server's explanation.

    `request_id` names the call in the server's log, None if no server answered. `info` has
    machine-readable details, None if there are none."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        request_id: str | None = None,
        info: ErrorInfo | None = None,
    ):
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.request_id = request_id
        self.info = info


@contextlib.contextmanager
def ovq_errors() -> Iterator[None]:
    """Raises each grpc.RpcError of the block, also one of grpc.aio, as an OvqError."""
    try:
        yield
    except grpc.RpcError as error:
        metadata = dict(list(error.trailing_metadata() or ()))
        info = _requests.error_info(metadata.get("grpc-status-details-bin"))
        request_id = metadata.get("x-request-id")
        raise OvqError(error.code(), error.details(), request_id, info) from error


def is_gone(error: OvqError) -> bool:
    """True for a server that drains or has gone away: harmless once all answers have arrived."""
    return error.code == grpc.StatusCode.UNAVAILABLE


class Retries:
    """Decides whether a refused call is sent again. The server names the delay (retry-after-ms); a
    refused call has not begun, so sending it again does nothing twice."""

    def __init__(self, count: int, timeout: float | None):
        self._left = count
        self._end = None if timeout is None else time.monotonic() + timeout

    def timeout(self) -> float | None:
        """Returns the rest of the call's time, in seconds."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def wait_after(self, error: OvqError) -> float | None:
        """Returns the seconds to wait before the call is sent again; None if the error is final."""
        wait = None if error.info is None else error.info.retry_after
        left = self.timeout()
        if wait is None or self._left == 0 or (left is not None and left <= wait):
            return None
        self._left -= 1
        return wait


class Connection:
    """A channel and the stub on it, for the clients of grpc and of grpc.aio."""

    _grpc: Any = grpc

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
        with every call, such as ("traceparent", ...). retries: how often a call other than chat is
        sent again if the server refuses it and names a delay; the client waits for that delay."""
        if (tls_cert is None) != (tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        options = _requests.CHANNEL_OPTIONS
        if tls_ca is None and tls_cert is None:
            self._channel = self._grpc.insecure_channel(address, options=options)
        else:
            credentials = grpc.ssl_channel_credentials(tls_ca, tls_key, tls_cert)
            self._channel = self._grpc.secure_channel(address, credentials, options=options)
        secret = () if token is None else (("authorization", f"Bearer {token}"),)
        self._stub: Any = Stub(self._channel, (*metadata, *secret))
        self._retries = retries


class Chat:
    """One live conversation on one stream; made by Client.chat. Use it on one thread, except
    cancel()."""

    def __init__(self, stub: Any, open_request: Any, session_key: str):
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._requests.put(open_request)
        self._responses = stub.Chat(iter(self._requests.get, None), session_key=session_key)
        self._running = False
        #: The session as it was opened.
        self.session = from_message(Session, self._read().opened.session)

    def __enter__(self) -> Chat:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._requests.put(None)
        if kind is not None or self._running:
            self._responses.cancel()
            return
        try:
            with ovq_errors():
                for _ in self._responses:
                    pass
        except OvqError as error_of_end:
            if not is_gone(error_of_end):
                raise

    def send(
        self, prompt: Prompt, *, cacheable: bool | None = None, **options: Unpack[Options]
    ) -> Iterator[Event]:
        """Sends a turn and returns its events. Read them to the end, or call cancel() and then read
        on, before the next turn. Options given once hold for later turns. A long prompt is sent in
        parts, and this returns once the server has prefilled all but the last. cacheable: as in
        Client.generate, for the first turn; for a prompt in parts, its first part."""
        if self._running:
            raise RuntimeError("a turn is running: read its events to the end first")
        *leading, last = _requests.chat_turns(prompt, cacheable, options)
        self._running = True
        for turn in leading:
            self._requests.put(turn)
            response = self._read()
            if response.WhichOneof("event") == "finished":  # another thread has cancelled the turn
                self._running = False
                return iter([_requests.event(response)])
        self._requests.put(last)
        return self._events()

    def cancel(self) -> None:
        """Ends the running turn: its events end with a Finished. Callable from any thread."""
        self._requests.put(_requests.chat_cancel())

    def _events(self) -> Iterator[Event]:
        while self._running:
            event = _requests.event(self._read())
            self._running = not isinstance(event, Finished)
            yield event

    def _read(self) -> Any:
        with ovq_errors():
            for response in self._responses:
                return response
        raise OvqError(grpc.StatusCode.UNKNOWN, "the server ended the conversation")


class Client(Connection):
    """A connection to one server. Thread-safe; every method but chat may raise OvqError.

    timeout: seconds for the whole call, delays before retries included; None waits for ever."""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def _call(self, call: Call[_T]) -> _T:
        send = getattr(self._stub, call.method)
        retries = Retries(self._retries, call.timeout)
        while True:
            try:
                with ovq_errors():
                    answer = send(
                        call.request, timeout=retries.timeout(), session_key=call.session_key
                    )
                    return call.read(answer)
            except OvqError as error:
                wait = retries.wait_after(error)
                if wait is None:
                    raise
                time.sleep(wait)

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
    ) -> Iterator[Event]:
        """Streams one answer. Without session_id its state ends with the call. Closing the iterator
        cancels the call. cacheable: whether the server may keep the state after the prompt for
        later prompts that begin alike; by default it keeps that of a conversation's system part.
        expected_position: the number of tokens that the session must have; otherwise the call is
        refused and the error's info has the true number, so a call whose answer was lost can be
        sent again safely."""
        request = _requests.generate(
            prompt, cacheable, options, session_id=session_id, memory=memory,
            max_centroids=max_centroids, expected_position=expected_position,
        )
        return self._stream(request, timeout)

    def _stream(self, request: Any, timeout: float | None) -> Iterator[Event]:
        key = _requests.session_key(request.session_id) if request.session_id else ""
        retries = Retries(self._retries, timeout)
        begun = False
        while True:
            call = self._stub.Generate(request, timeout=retries.timeout(), session_key=key)
            try:
                with ovq_errors():
                    for response in call:
                        begun = True
                        yield _requests.event(response)
                return
            except OvqError as error:
                wait = None if begun else retries.wait_after(error)
                if wait is None:
                    raise
                time.sleep(wait)
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
    ) -> Chat:
        """Opens a conversation; use it in a `with` statement. A new session ends with it unless
        keep_session is set. ttl: idle seconds after which a kept session is deleted."""
        return Chat(
            self._stub,
            _requests.chat_open(
                ttl, session_id=session_id, memory=memory, max_centroids=max_centroids,
                keep_session=keep_session,
            ),
            _requests.session_key(session_id),
        )

    score = blocking(_calls.score)
    apply_template = blocking(_calls.apply_template)
    tokenize = blocking(_calls.tokenize)
    detokenize = blocking(_calls.detokenize)
    model_info = blocking(_calls.model_info)
    create_session = blocking(_calls.create_session)
    get_session = blocking(_calls.get_session)
    fork_session = blocking(_calls.fork_session)
    rewind_session = blocking(_calls.rewind_session)
    delete_session = blocking(_calls.delete_session)

    def list_sessions(self, page_size: int = 0) -> Iterator[Session]:
        """Yields all sessions, fetched page by page. page_size 0: the server's default."""
        token = ""
        while True:
            page = self._call(_calls.list_page(page_size, token))
            yield from (from_message(Session, session) for session in page.sessions)
            token = page.next_page_token
            if not token:
                return

    def export_session(self, session_id: str, *, since: Base | None = None) -> Iterator[bytes]:
        """Yields the session as a file of docs/session-format.md, in parts. With the `base` of an
        earlier file (session_file.read) it is a delta, to be applied by session_file.join."""
        request = _requests.export_session(session_id, since)
        key = _requests.session_key(session_id)
        with ovq_errors():
            for part in self._stub.ExportSession(request, session_key=key):
                yield part.data

    def import_session(self, parts: Iterable[bytes], *, ttl: float | None = None) -> Session:
        """Creates a session from an exported file."""

        def messages() -> Iterator[Any]:
            yield _requests.import_begin(ttl)
            for part in parts:
                yield from _requests.session_bytes(part)

        key = _requests.session_key(None)
        with ovq_errors():
            return from_message(Session, self._stub.ImportSession(messages(), session_key=key))
