"""Sources of a model's predictions on a sequence: an ovq-server over gRPC, or the PyTorch
reference."""

import contextlib
import dataclasses
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading

import numpy as np

_CLIENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "clients", "python")
# A server loads its weights before it listens: a large model on a slow disk takes minutes.
_START_SECONDS = 600
_END_SECONDS = 30


class PredictionError(RuntimeError):
    """The server does not start or does not answer."""


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Predictions of every token of a sequence but the first, from those before it; each [n_tokens
    - 1].

    top_ids int64: the most probable token (ties: the lowest id). top_logprobs: its log-probability.
    logprobs: the actual token's log-probability. Natural logarithms."""
    top_ids: np.ndarray
    top_logprobs: np.ndarray
    logprobs: np.ndarray


class ServedPredictor:
    """Makes one Score call for each sequence; thread-safe.

    client: a Client of clients/python, whose calls raise client_error. timeout: seconds for a call.
    """

    backend = "server"

    def __init__(self, client, client_error, timeout):
        self._client, self._client_error, self._timeout = client, client_error, timeout

    @contextlib.contextmanager
    def _prediction_errors(self):
        try:
            yield
        except self._client_error as error:
            raise PredictionError(str(error)) from error

    def info(self):
        with self._prediction_errors():
            return self._client.model_info()

    def tokenize(self, text, add_bos=False):
        with self._prediction_errors():
            return self._client.tokenize(text, add_bos=add_bos)

    def predict(self, tokens, max_centroids, memory=None):
        """Predicts tokens [n_tokens]; max_centroids None: the model's; memory None: the server's
        first."""
        with self._prediction_errors():
            score = self._client.score(tokens.tolist(), memory=memory, max_centroids=max_centroids,
                                       top_logprobs=1, timeout=self._timeout)
        tops = score.top[:-1]  # the last one predicts the token after the sequence
        return Predictions(np.array([top.token_ids[0] for top in tops]),
                           np.array([top.logprobs[0] for top in tops]),
                           np.array(score.logprobs))

    def state_bytes(self, n_tokens, max_centroids):
        """Returns (bytes of a session's state at that position, bytes that full attention would
        hold)."""
        with self._prediction_errors():
            size, = self._client.model_info([n_tokens], max_centroids=max_centroids).state_sizes
        return size.state_bytes, size.full_kv_cache_bytes


class ReferencePredictor:
    """The PyTorch reference on a model folder, in float32; memory: see OvqModel.read_through."""

    backend = "reference"

    def __init__(self, folder, ablation="none", memory=None, device="cpu"):
        # imported here, so that served models are scored without torch
        import torch
        from ovq.model import load_model
        self._torch, self._device = torch, device
        rule = memory and memory.replace("_", "-")
        self._model = load_model(folder, torch.float32, ablation, rule).to(device)
        if memory:
            self._model.read_through(memory)

    def predict(self, tokens, max_centroids):
        torch = self._torch
        with torch.no_grad():
            tokens = torch.from_numpy(tokens).to(self._device)
            logits = self._model(tokens[None, :-1], max_centroids)[0]
            logprobs = logits.log_softmax(-1)
            # argmax of the logits: two tokens' float32 probabilities may be equal when their logits
            # are not
            top_ids, at = logits.argmax(-1), torch.arange(len(logits), device=self._device)
            chosen = (top_ids, logprobs[at, top_ids], logprobs[at, tokens[1:]])
        return Predictions(*(one.cpu().numpy() for one in chosen))

    def state_bytes(self, n_tokens, max_centroids):
        """Not available: only a server knows it."""
        return None, None


@contextlib.contextmanager
def client_of(address):
    """Returns (a Client of clients/python for a running server, the exception that its calls
    raise)."""
    sys.path.append(_CLIENT)
    try:
        from ovq_client import Client, OvqError
    except ImportError as error:
        raise PredictionError(f"clients/python: {error}; it needs python3-grpcio, "
                              "python3-protobuf and protobuf-compiler") from error
    with Client(address) as client:
        yield client, OvqError


@contextlib.contextmanager
def connected(address, timeout):
    """Returns a ServedPredictor for a running server."""
    with client_of(address) as (client, client_error):
        yield ServedPredictor(client, client_error, timeout)


def _await_address(process, log):
    """Returns the address on which the server listens; raises an error with the end of its log if
    it never does."""
    overdue = threading.Timer(_START_SECONDS, process.kill)
    overdue.start()
    line = process.stdout.readline()
    overdue.cancel()
    match = re.fullmatch(r"listening on (\S+)\n", line)
    if match:
        return match[1]
    process.kill()
    process.wait()
    log.seek(0)
    raise PredictionError(f"{process.args[0]} did not start: {log.read()[-2000:].strip()}")


@contextlib.contextmanager
def started_server(binary, model, flags=()):
    """Serves a model folder on free ports of this machine; yields the address."""
    command = [binary, "--model", model, "--listen", "127.0.0.1:0", "--metrics-address", "", *flags]
    with tempfile.TemporaryFile("w+") as log, \
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        try:
            yield _await_address(process, log)
        finally:
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def server_flags(plan, extra):
    """Returns flags for the limits that the plan's sequences need; `extra`, the rest of a command
    line, overrides them."""
    longest = max(job.n_tokens for job in plan)
    centroids = max(job.max_centroids or 0 for job in plan)
    flags = ["--max-prompt-tokens", str(longest), "--max-context", str(longest)]
    if centroids > 65536:  # the server's default; a lower flag would lower the model's own
        flags += ["--max-centroids", str(centroids)]
    return [*flags, *shlex.split(extra)]
