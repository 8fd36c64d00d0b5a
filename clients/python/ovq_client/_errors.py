"""Errors of calls, and the decision whether a refused call is sent again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc

from ovq_client._messages import MESSAGES
from ovq_client.types import ErrorInfo, from_message


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


def _error_info(details: bytes | None) -> Any:
    message = MESSAGES["ErrorInfo"]()
    for detail in MESSAGES["ErrorStatus"].FromString(details or b"").details:
        if detail.Unpack(message):
            return from_message(message)
    return None


@contextlib.contextmanager
def ovq_errors() -> Iterator[None]:
    """Raises each grpc.RpcError of the block, also one of grpc.aio, as an OvqError."""
    try:
        yield
    except grpc.RpcError as error:
        metadata = dict(list(error.trailing_metadata() or ()))
        info = _error_info(metadata.get("grpc-status-details-bin"))
        raise OvqError(error.code(), error.details(), metadata.get("x-request-id"), info) from error


class Retries:
    """Decides whether a refused call is sent again. The server names the delay (retry-after-ms); a
    refused call has not begun, so sending it again does nothing twice."""

    def __init__(
        self, count: int, timeout: float | None, sleep: Callable[[float], Awaitable[None]]
    ):
        self._left = count
        self._end = None if timeout is None else time.monotonic() + timeout
        self._sleep = sleep

    def timeout(self) -> float | None:
        """Returns the rest of the call's time, in seconds."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    async def wait_after(self, error: OvqError) -> None:
        """Waits until the call may be sent again; raises the error if it is final."""
        wait = None if error.info is None else error.info.retry_after
        left = self.timeout()
        if wait is None or self._left == 0 or (left is not None and left <= wait):
            raise error
        self._left -= 1
        await self._sleep(wait)
