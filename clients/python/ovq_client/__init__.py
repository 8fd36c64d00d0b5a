"""Python client of ovq-server.

    from ovq_client import Client, TokenChunk

    with Client("127.0.0.1:50051") as client:
        for event in client.generate("def close(self):", max_tokens=64, temperature=0.8):
            if isinstance(event, TokenChunk):
                print(event.text, end="", flush=True)
"""

from __future__ import annotations

from ovq_client import types
from ovq_client.client import Chat, Client, OvqError
from ovq_client.constraint import (
    JSON_OBJECT, Choice, Constraint, Grammar, Regex, UnfinishedAnswer, json_schema,
)
from ovq_client.types import *  # noqa: F403

#: Of this package and of the server that it came with.
__version__ = "0.1.0"

__all__ = [
    "JSON_OBJECT", "Chat", "Choice", "Client", "Constraint", "Grammar", "OvqError", "Regex",
    "UnfinishedAnswer", "json_schema",
]
__all__ += types.__all__
