"""Python client of ovq-server.

    from ovq_client import Client, TokenChunk

    with Client("127.0.0.1:50051") as client:
        for event in client.generate("def main():", max_tokens=64, temperature=0):
            if isinstance(event, TokenChunk):
                print(event.text, end="", flush=True)
"""

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
    Started,
    StateSize,
    TokenChunk,
    TopLogprobs,
    TurnEnd,
    Usage,
)

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
    "Started",
    "StateSize",
    "TokenChunk",
    "TopLogprobs",
    "TurnEnd",
    "Usage",
]
