"""Client and Chat: the calls of ovq.v1 as methods."""

import contextlib
import queue
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Unpack

import grpc

from ovq_client._messages import MESSAGES, Duration, Stub
from ovq_client.session_file import Base
from ovq_client.types import (
    Conversation,
    ErrorInfo,
    Event,
    Finished,
    ModelInfo,
    Options,
    Prompt,
    Rewound,
    Score,
    Session,
    Started,
    TokenChunk,
    from_message,
)

# Long prompts of a chat go in parts, far below the 4 MiB that a gRPC server takes in one message.
_PART_BYTES = 64 * 1024
_PART_IDS = 16 * 1024
_FILE_PART_BYTES = 1 << 20

_EVENTS = {"started": Started, "chunk": TokenChunk, "finished": Finished}
_OPTION_MESSAGES = {"sampling": "SamplingParams", "stop": "StopConditions", "output": "OutputOptions"}


class OvqError(Exception):
    """A call failed: `code` is the gRPC status code, `message` the server's explanation.

    `request_id` names the call in the server's log; None where no server answered. `info` has what
    a program may go by, None where there is nothing.
    """

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
def _ovq_errors() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        metadata = dict(error.trailing_metadata() or ())
        info = _error_info(metadata.get("grpc-status-details-bin"))
        raise OvqError(error.code(), error.details(), metadata.get("x-request-id"), info) from error


def _error_info(details: bytes | None) -> ErrorInfo | None:
    message = MESSAGES["ErrorInfo"]()
    for detail in MESSAGES["ErrorStatus"].FromString(details or b"").details:
        if detail.Unpack(message):
            return from_message(ErrorInfo, message)
    return None


def _prompt(prompt: Prompt | None, cacheable: bool | None = None) -> Any:
    if prompt is None:
        return None
    if isinstance(prompt, str):
        return MESSAGES["Prompt"](text=prompt, cacheable=cacheable)
    if isinstance(prompt, Conversation):
        return MESSAGES["Prompt"](conversation=_conversation(prompt), cacheable=cacheable)
    return MESSAGES["Prompt"](token_ids=MESSAGES["TokenIds"](ids=prompt), cacheable=cacheable)


def _conversation(conversation: Conversation) -> Any:
    return MESSAGES["Conversation"](
        messages=[
            MESSAGES["ChatMessage"](role=role, content=content)
            for role, content in conversation.messages
        ],
        tools_json=conversation.tools_json,
        add_generation_prompt=conversation.add_generation_prompt,
        known=conversation.known,
    )


def _duration(seconds: float | None) -> Any:
    if seconds is None:
        return None
    return Duration(seconds=int(seconds), nanos=round(seconds % 1 * 1e9))


def _option_messages(options: Options) -> dict[str, Any]:
    """The request fields sampling, stop and output; those without an option stay absent."""
    left = dict(options)
    messages = {}
    for field, name in _OPTION_MESSAGES.items():
        known = MESSAGES[name].DESCRIPTOR.fields_by_name
        values = {key: left.pop(key) for key in list(left) if key in known}
        if values:
            messages[field] = MESSAGES[name](**values)
    if left:
        raise TypeError(f"unknown options: {', '.join(sorted(left))}")
    return messages


def _event(response: Any) -> Event:
    kind = response.WhichOneof("event")
    return from_message(_EVENTS[kind], getattr(response, kind))


def _session_key(session_id: str | None) -> str:
    """What keeps a session's calls on its server behind a balancer; a new one without an id. A
    session that was made with a key has it in its id, KEY.RANDOM."""
    if session_id is None:
        return secrets.token_hex(16)
    found = re.match(r"([A-Za-z0-9_-]+)\.", session_id)
    return found.group(1) if found else ""


def _parts(prompt: Prompt) -> list[Prompt]:
    """Parts that add up to the prompt; text is cut between characters, a conversation not."""
    if isinstance(prompt, Conversation):
        return [prompt]
    if not isinstance(prompt, str):
        return [prompt[i : i + _PART_IDS] for i in range(0, len(prompt), _PART_IDS)] or [prompt]
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


class Chat:
    """One live conversation on one stream; made by Client.chat. One thread, but for cancel()."""

    def __init__(self, stub: Stub, open_request: Any, session_key: str):
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._requests.put(MESSAGES["ChatRequest"](open=open_request))
        self._responses = stub.Chat(
            iter(self._requests.get, None), session_key=session_key
        )
        self._running = False
        #: The session as it was opened.
        self.session = from_message(Session, self._read().opened.session)

    def __enter__(self) -> "Chat":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._requests.put(None)
        if kind is not None or self._running:
            self._responses.cancel()
            return
        with _ovq_errors():
            for _ in self._responses:
                pass

    def send(
        self, prompt: Prompt, *, cacheable: bool | None = None, **options: Unpack[Options]
    ) -> Iterator[Event]:
        """Sends a turn and returns its events. Read them to the end, or cancel() and then read on,
        before the next turn. Options given once hold for later turns. A long prompt goes in parts,
        and this returns once the server has absorbed all but the last. cacheable: as in
        Client.generate, of the first turn; of a prompt in parts, its first part."""
        if self._running:
            raise RuntimeError("a turn is running: read its events to the end first")
        messages = _option_messages(options)
        self._running = True
        *leading, last = _parts(prompt)
        for part in leading:
            self._send_turn(prompt=_prompt(part, cacheable), more=True)
            response = self._read()
            if response.WhichOneof("event") == "finished":  # cancelled meanwhile
                self._running = False
                return iter([_event(response)])
        self._send_turn(prompt=_prompt(last, cacheable), **messages)
        return self._events()

    def cancel(self) -> None:
        """Ends the running turn: its events end with a Finished. Any thread."""
        self._requests.put(MESSAGES["ChatRequest"](cancel=MESSAGES["CancelTurn"]()))

    def _send_turn(self, **fields: Any) -> None:
        self._requests.put(MESSAGES["ChatRequest"](turn=MESSAGES["ChatTurn"](**fields)))

    def _events(self) -> Iterator[Event]:
        while self._running:
            event = _event(self._read())
            self._running = not isinstance(event, Finished)
            yield event

    def _read(self) -> Any:
        with _ovq_errors():
            for response in self._responses:
                return response
        raise OvqError(grpc.StatusCode.UNKNOWN, "the server ended the conversation")


class Client:
    """A connection to one server. Thread-safe; every method but chat may raise OvqError.

    timeout: seconds, of the whole call; None waits for ever.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:50051",
        *,
        tls_ca: bytes | None = None,
        tls_cert: bytes | None = None,
        tls_key: bytes | None = None,
        token: str | None = None,
        metadata: Sequence[tuple[str, str]] = (),
    ):
        """metadata: sent with every call, such as ("traceparent", ...). tls_*: contents of PEM files. TLS is used where tls_ca or tls_cert is given; without
        tls_ca the server's certificate is checked against the authorities that gRPC knows."""
        if (tls_cert is None) != (tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        options = [("grpc.max_receive_message_length", -1), ("grpc.keepalive_time_ms", 30000)]
        if tls_ca is None and tls_cert is None:
            self._channel = grpc.insecure_channel(address, options=options)
        else:
            credentials = grpc.ssl_channel_credentials(tls_ca, tls_key, tls_cert)
            self._channel = grpc.secure_channel(address, credentials, options=options)
        secret = () if token is None else (("authorization", f"Bearer {token}"),)
        self._inference = Stub(self._channel, "InferenceService", (*metadata, *secret))
        self._sessions = Stub(self._channel, "SessionService", (*metadata, *secret))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

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
        """One answer, streamed. Without session_id its state ends with the call. Closing the
        iterator cancels the call. cacheable: whether the server may keep the state behind the
        prompt for others that begin alike; by default that of a conversation's system part.
        expected_position: tokens that the session must have, or the call is refused and the
        error's info has the true number; so a call whose answer was lost can be sent again."""
        request = MESSAGES["GenerateRequest"](
            prompt=_prompt(prompt, cacheable),
            session_id=session_id,
            memory=memory,
            max_centroids=max_centroids,
            expected_position=expected_position,
            **_option_messages(options),
        )
        return self._stream(request, timeout)

    def _stream(self, request: Any, timeout: float | None) -> Iterator[Event]:
        key = _session_key(request.session_id) if request.session_id else None
        call = self._inference.Generate(request, timeout=timeout, session_key=key)
        try:
            with _ovq_errors():
                for response in call:
                    yield _event(response)
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
        keep_session is set. ttl: seconds of idling after which a kept session is deleted."""
        return Chat(
            self._inference,
            MESSAGES["ChatOpen"](
                session_id=session_id,
                memory=memory,
                max_centroids=max_centroids,
                keep_session=keep_session,
                ttl=_duration(ttl),
            ),
            _session_key(session_id),
        )

    def score(
        self,
        prompt: Prompt,
        *,
        memory: str | None = None,
        max_centroids: int | None = None,
        top_logprobs: int | None = None,
        timeout: float | None = None,
    ) -> Score:
        """The log-probability of every token of the prompt after its first."""
        request = MESSAGES["ScoreRequest"](
            prompt=_prompt(prompt),
            memory=memory,
            max_centroids=max_centroids,
            top_logprobs=top_logprobs,
        )
        with _ovq_errors():
            return from_message(Score, self._inference.Score(request, timeout=timeout))

    def apply_template(self, conversation: Conversation) -> str:
        """The text that the model's chat template makes of the conversation."""
        request = MESSAGES["ApplyTemplateRequest"](conversation=_conversation(conversation))
        with _ovq_errors():
            return self._inference.ApplyTemplate(request).text

    def tokenize(self, text: str, *, add_bos: bool | None = None) -> list[int]:
        request = MESSAGES["TokenizeRequest"](text=text, add_bos=add_bos)
        with _ovq_errors():
            return list(self._inference.Tokenize(request).token_ids)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Bytes that are not valid UTF-8 come back as U+FFFD."""
        request = MESSAGES["DetokenizeRequest"](token_ids=token_ids)
        with _ovq_errors():
            return self._inference.Detokenize(request).text

    def model_info(
        self,
        positions: Sequence[int] = (),
        *,
        memory: str | None = None,
        max_centroids: int | None = None,
    ) -> ModelInfo:
        """positions: where to report state sizes; the server has defaults. memory: that is asked
        about, the server's first by default."""
        request = MESSAGES["GetModelInfoRequest"](
            positions=positions, memory=memory, max_centroids=max_centroids
        )
        with _ovq_errors():
            return from_message(ModelInfo, self._inference.GetModelInfo(request))

    def create_session(
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
        """A new session that has absorbed the prompt when this returns. memory: one of
        ModelInfo.memories. Without keep_tokens it cannot be rewound. cacheable: as in generate."""
        request = MESSAGES["CreateSessionRequest"](
            prompt=_prompt(prompt, cacheable),
            memory=memory,
            max_centroids=max_centroids,
            ttl=_duration(ttl),
            keep_tokens=keep_tokens,
        )
        with _ovq_errors():
            session = self._sessions.CreateSession(
                request, timeout=timeout, session_key=_session_key(None)
            )
            return from_message(Session, session)

    def get_session(self, session_id: str) -> Session:
        request = MESSAGES["GetSessionRequest"](session_id=session_id)
        with _ovq_errors():
            session = self._sessions.GetSession(request, session_key=_session_key(session_id))
            return from_message(Session, session)

    def list_sessions(self, page_size: int = 0) -> Iterator[Session]:
        """All sessions, fetched page by page. page_size 0: the server's."""
        token = ""
        while True:
            request = MESSAGES["ListSessionsRequest"](page_size=page_size, page_token=token)
            with _ovq_errors():
                page = self._sessions.ListSessions(request)
            yield from (from_message(Session, session) for session in page.sessions)
            token = page.next_page_token
            if not token:
                return

    def fork_session(
        self, session_id: str, count: int | None = None, *, ttl: float | None = None
    ) -> list[Session]:
        """Copies of a session that no call uses, from here on sessions of their own."""
        request = MESSAGES["ForkSessionRequest"](
            session_id=session_id, count=count, ttl=_duration(ttl)
        )
        with _ovq_errors():
            forked = self._sessions.ForkSession(request, session_key=_session_key(session_id))
            return [from_message(Session, session) for session in forked.sessions]

    def rewind_session(self, session_id: str, position: int, *, dry_run: bool = False) -> Rewound:
        """Takes the session back to its first `position` tokens, or only says what that takes."""
        request = MESSAGES["RewindSessionRequest"](
            session_id=session_id, position=position, dry_run=dry_run
        )
        with _ovq_errors():
            rewound = self._sessions.RewindSession(request, session_key=_session_key(session_id))
            session = from_message(Session, rewound.session)
        return Rewound(session=session, replay_tokens=rewound.replay_tokens)

    def export_session(self, session_id: str, *, since: Base | None = None) -> Iterator[bytes]:
        """The session as a file of docs/session-format.md, in parts; with the `base` of an earlier
        one (session_file.read) a delta, to be joined with that (session_file.join)."""
        request = MESSAGES["ExportSessionRequest"](session_id=session_id)
        if since is not None:
            request.since.length, request.since.digest = since
        with _ovq_errors():
            parts = self._sessions.ExportSession(request, session_key=_session_key(session_id))
            for part in parts:
                yield part.data

    def import_session(self, parts: Iterable[bytes], *, ttl: float | None = None) -> Session:
        """A new session from such a file."""
        message = MESSAGES["SessionBytes"]

        def messages() -> Iterator[Any]:
            yield message(ttl=_duration(ttl))
            for part in parts:
                for at in range(0, len(part), _FILE_PART_BYTES):
                    yield message(data=part[at : at + _FILE_PART_BYTES])

        with _ovq_errors():
            session = self._sessions.ImportSession(messages(), session_key=_session_key(None))
            return from_message(Session, session)

    def delete_session(self, session_id: str) -> None:
        """Ends the session; a call that uses it is cancelled."""
        request = MESSAGES["DeleteSessionRequest"](session_id=session_id)
        with _ovq_errors():
            self._sessions.DeleteSession(request, session_key=_session_key(session_id))
