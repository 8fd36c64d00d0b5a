"""A small ovq.v1 server for client tests: it has no model, and every answer is a function of the
prompt.

A token is a byte. The answer to a prompt is "<position>:<last 8 characters of the prompt>", where
position counts the conversation's bytes before the answer, cut to max_tokens. Special
prompts: "slow" streams dots until it is cancelled, "bad" fails with INVALID_ARGUMENT,
"cut" ends with UNAVAILABLE after the answer's first character,
after the answer to "last" a Chat ends with UNAVAILABLE.

The id of a session created with metadata ovq-session contains its value, and calls on the session
must send it.
"""

import queue
import subprocess
import sys
import threading
import time
from concurrent import futures
from pathlib import Path

import grpc

ROOT = Path(__file__).resolve().parents[2]


def compile_proto(folder):
    """Generates the Python modules of the proto into `folder` and imports them."""
    plugin = subprocess.run(
        ["which", "grpc_python_plugin"], capture_output=True, text=True, check=True
    ).stdout.strip()
    subprocess.run(
        ["protoc", f"-I{ROOT / 'proto'}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
        + [f"--plugin=protoc-gen-grpc_python={plugin}", "ovq/v1/inference.proto"],
        check=True,
    )
    sys.path.insert(0, str(folder))
    from ovq.v1 import inference_pb2, inference_pb2_grpc

    return inference_pb2, inference_pb2_grpc


class FakeServer:
    """Serves on a free port of 127.0.0.1 between start() and stop(); records what it receives."""

    def __init__(self, pb, pb_grpc):
        self.pb = pb
        self.sessions = {}
        self.turns = []  # every ChatTurn, in order
        self.opens = []  # every ChatOpen
        self.requests = []  # every GenerateRequest
        self.has_chat_template = False
        # times in ms with which the next calls of Generate and Score are refused
        self.refusals = []
        self.refuse_sampling = None  # if set, Generate refuses its sampling with this text
        self.exports_go_on = threading.Event()  # else each waits after its first part
        self.exports_go_on.set()
        self._grpc = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
        pb_grpc.add_InferenceServiceServicer_to_server(self, self._grpc)
        pb_grpc.add_SessionServiceServicer_to_server(self, self._grpc)
        self.address = f"127.0.0.1:{self._grpc.add_insecure_port('127.0.0.1:0')}"

    def start(self):
        self._grpc.start()
        return self

    def stop(self):
        self._grpc.stop(grace=0).wait()

    # --- InferenceService ---

    def Generate(self, request, context):
        self.requests.append(request)
        self._refuse(context)
        if self.refuse_sampling is not None:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.refuse_sampling)
        session = self._session(request, context)
        yield from self._answer(request, session, self.pb.GenerateResponse, context)

    def Chat(self, requests, context):
        inbox = queue.Queue()

        def read():
            try:
                for request in requests:
                    inbox.put(request)
            except grpc.RpcError:
                pass
            inbox.put(None)

        threading.Thread(target=read, daemon=True).start()
        opened = inbox.get().open
        self.opens.append(opened)
        session = self._session(opened, context)
        yield self.pb.ChatResponse(opened=self.pb.ChatOpened(session=session))
        while (request := inbox.get()) is not None:
            if request.WhichOneof("event") == "cancel":
                continue  # the cancel arrived after the end of its turn
            self.turns.append(request.turn)
            if request.turn.more:
                session.position += len(self._ids(request.turn.prompt))
                absorbed = self.pb.PartAbsorbed(position=session.position)
                yield self.pb.ChatResponse(absorbed=absorbed)
            else:
                yield from self._answer(
                    request.turn, session, self.pb.ChatResponse, context, inbox
                )
                if request.turn.prompt.text == "last":
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the server is draining")
        if not (opened.session_id or opened.keep_session):
            del self.sessions[session.session_id]

    def Score(self, request, context):
        self._refuse(context)
        ids = self._ids(request.prompt)
        top = [
            self.pb.TopLogprobs(token_ids=range(request.top_logprobs))
            for _ in ids
            if request.top_logprobs
        ]
        return self.pb.ScoreResponse(token_ids=ids, logprobs=[-0.5] * (len(ids) - 1), top=top)

    def ApplyTemplate(self, request, context):
        return self.pb.ApplyTemplateResponse(text=self._written(request.conversation))

    def Tokenize(self, request, context):
        ids = [256] * request.add_bos + list(request.text.encode())
        return self.pb.TokenizeResponse(token_ids=ids)

    def Detokenize(self, request, context):
        text = bytes(i for i in request.token_ids if i < 256).decode(errors="replace")
        return self.pb.DetokenizeResponse(text=text)

    def GetModelInfo(self, request, context):
        sizes = [
            self.pb.StateSize(position=p, state_bytes=4096, full_kv_cache_bytes=p * 100)
            for p in request.positions or [1024]
        ]
        return self.pb.ModelInfo(
            name="fake",
            vocab_size=257,
            layer_types=["ovq_attention"],
            state_sizes=sizes,
            has_chat_template=self.has_chat_template,
        )

    # --- SessionService ---

    def CreateSession(self, request, context):
        session = self._new_session(request, context)
        session.position = len(self._ids(request.prompt))
        session.expires.FromSeconds(1000 + request.ttl.seconds)
        return session

    def GetSession(self, request, context):
        return self._session(request, context)

    def ListSessions(self, request, context):
        ids = sorted(self.sessions)
        begin = int(request.page_token or 0)
        end = begin + (request.page_size or 100)
        return self.pb.ListSessionsResponse(
            sessions=[self.sessions[i] for i in ids[begin:end]],
            next_page_token=str(end) if end < len(ids) else "",
        )

    def DeleteSession(self, request, context):
        self._session(request, context)
        del self.sessions[request.session_id]
        return self.pb.DeleteSessionResponse()

    def ForkSession(self, request, context):
        session = self._session(request, context)
        copies = []
        for _ in range(request.count or 1):
            copies.append(self.pb.Session())
            copies[-1].CopyFrom(session)
            copies[-1].session_id = self._new_session(self.pb.CreateSessionRequest(), context).session_id
            self.sessions[copies[-1].session_id] = copies[-1]
        return self.pb.ForkSessionResponse(sessions=copies)

    def RewindSession(self, request, context):
        session = self._session(request, context)
        replay = 0 if request.position == session.position else request.position
        if not request.dry_run:
            session.position = request.position
        return self.pb.RewindSessionResponse(session=session, replay_tokens=replay)

    def ExportSession(self, request, context):
        session = self._session(request, context)
        since = request.since
        parts = (b"session ", str(session.position).encode())
        if request.HasField("since"):
            parts = (b"since ", str(since.length).encode(), b" ", since.digest)
        for part in parts:
            yield self.pb.SessionBytes(data=part)
            self.exports_go_on.wait(60)

    def ImportSession(self, requests, context):
        data = b"".join(part.data for part in requests)
        if not data.startswith(b"session "):
            context.abort(grpc.StatusCode.DATA_LOSS, "session file: damaged")
        session = self.pb.Session()
        session.CopyFrom(self._new_session(self.pb.CreateSessionRequest(), context))
        session.position = int(data[8:])
        self.sessions[session.session_id] = session
        return session

    # --- helpers ---

    def _refuse(self, context):
        if not self.refusals:
            return
        info = self.pb.ErrorInfo(reason="tenant_requests")
        info.retry_after.FromMilliseconds(self.refusals.pop(0))
        status = self.pb.ErrorStatus(code=8, message="too soon")
        status.details.add().Pack(info)
        context.set_trailing_metadata(
            (("grpc-status-details-bin", status.SerializeToString()),)
        )
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too soon")

    def _ids(self, prompt):
        if prompt.HasField("conversation"):
            return list(self._written(prompt.conversation).encode())
        return list(prompt.text.encode()) if prompt.HasField("text") else prompt.token_ids.ids

    def _written(self, conversation):
        new = conversation.messages[conversation.known :]
        return "".join(f"[{message.role}]{message.content}" for message in new)

    def _key(self, context):
        return dict(context.invocation_metadata()).get("ovq-session", "")

    def _new_session(self, request, context):
        key = self._key(context)
        session = self.pb.Session(
            session_id=(f"{key}." if key else "") + f"{len(self.sessions):032x}",
            memory=request.memory or "model",
            max_centroids=request.max_centroids or 64,
            state_bytes=1536,
            state_bytes_cap=4 << 20,
        )
        self.sessions[session.session_id] = session
        return session

    def _session(self, request, context):
        if not request.session_id:
            return self._new_session(request, context)
        if request.session_id not in self.sessions:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no session {request.session_id}")
        if self._key(context) != request.session_id.rpartition(".")[0]:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "another session's key")
        return self.sessions[request.session_id]

    def _answer(self, request, session, response, context, inbox=None):
        pb = self.pb
        ids = self._ids(request.prompt)
        text = bytes(ids).decode()
        if text == "bad":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "temperature: expected [0, 100]")
        usage = pb.Usage(
            prompt_tokens=len(ids), cached_tokens=session.position, state_bytes=session.state_bytes
        )
        session.position += len(ids)
        session.prompt_tokens_total += len(ids)
        started = pb.Started(
            session_id=session.session_id,
            prompt_tokens=len(ids),
            cached_tokens=usage.cached_tokens,
            seed=request.sampling.seed or 42,
        )
        yield response(started=started)
        reason = pb.FINISH_REASON_STOP
        if text == "slow":
            reason = pb.FINISH_REASON_CANCELLED
            answer = "."
            while context.is_active() and (inbox is None or inbox.empty()):
                yield response(chunk=pb.TokenChunk(text=".", token_ids=[46]))
                time.sleep(0.01)
        else:
            answer = "x" * 5000 if text == "long" else f"{session.position}:{text[-8:]}"
            if request.stop.HasField("max_tokens") and len(answer) > request.stop.max_tokens:
                answer = answer[: request.stop.max_tokens]
                reason = pb.FINISH_REASON_LENGTH
            for piece in answer:
                chunk = pb.TokenChunk(text=piece, token_ids=piece.encode())
                if request.output.logprobs:
                    chunk.logprobs.extend([-0.25] * len(chunk.token_ids))
                yield response(chunk=chunk)
                if text == "cut":
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
        usage.generated_tokens = len(answer.encode())
        session.position += usage.generated_tokens
        session.generated_tokens_total += usage.generated_tokens
        usage.position = session.position
        usage.prefill_time.FromMilliseconds(10)
        usage.decode_time.FromMilliseconds(20)
        yield response(finished=pb.Finished(reason=reason, usage=usage))
