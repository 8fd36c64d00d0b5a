"""Python client of ovq-server.

    from ovq_client import Client, TokenChunk

    with Client("127.0.0.1:50051") as client:
        for event in client.generate("def close(self):", max_tokens=64, temperature=0.8):
            if isinstance(event, TokenChunk):
                print(event.text, end="", flush=True)
"""

from __future__ import annotations

from ovq_client.client import Chat, Client, OvqError
from ovq_client.types import (
    Conversation,
    ErrorInfo,
    Event,
    Finished,
    FinishReason,
    ModelInfo,
    Options,
    Prompt,
    RequestLimits,
    Score,
    Rewound,
    Session,
    Speculation,
    Started,
    StateSize,
    TokenChunk,
    TopLogprobs,
    TurnEnd,
    Usage,
)

#: Of this package and of the server that it came with.
__version__ = "0.1.0"

__all__ = [
    "Chat",
    "Client",
    "Conversation",
    "ErrorInfo",
    "Event",
    "FinishReason",
    "Finished",
    "ModelInfo",
    "Options",
    "OvqError",
    "Prompt",
    "RequestLimits",
    "Score",
    "Rewound",
    "Session",
    "Speculation",
    "Started",
    "StateSize",
    "TokenChunk",
    "TopLogprobs",
    "TurnEnd",
    "Usage",
]
