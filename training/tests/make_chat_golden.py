"""Writes tests/golden/chat_template/scripted_chat.json: conversations and the text that training gives them.

A test of the server renders the same conversations by the model's chat_template.jinja."""

import json
import os
import random
import sys

from support import TRAINING

from chat.render import message_parts, system_parts
from conversations import Conversation

GOLDEN = os.path.join(os.path.dirname(TRAINING), "tests", "golden", "chat_template", "scripted_chat.json")


def as_client(message):
    """Returns a message as clients of OpenAI's API write it."""
    calls = [{"type": "function", "id": f"call_{i}", "function": {**call, "arguments": json.dumps(call["arguments"])}}
             for i, call in enumerate(message.get("tool_calls", []))]
    return {**message, "tool_calls": calls} if calls else message


def case(seed):
    conversation = Conversation(random.Random(seed), 500)
    conversation.thinks = seed % 3 == 0
    messages = [message for _ in range(3) for message in conversation.next_turn().messages]
    opened = seed % 2 == 0
    if opened:
        messages.append({"role": "user", "content": "Hello"})
    tools = [tool.schema for tool in conversation.tools]
    parts = [*system_parts(conversation.system, tools), *(part for m in messages for part in message_parts(m))]
    text = "".join(text for text, _ in parts)
    if opened:
        text += "<|im_start|>assistant\n" + ("<think>\n" if conversation.thinks else "")
    system = [{"role": "system", "content": conversation.system}] if conversation.system else []
    thinking = ({"enable_thinking": conversation.thinks} if seed % 4 else
                {"reasoning_effort": "low" if conversation.thinks else "none"})
    variables = {"messages": system + [as_client(m) if seed % 5 else m for m in messages],
                 "tools": [{"type": "function", "function": tool} for tool in tools] or None,
                 "add_generation_prompt": opened, **thinking}
    return {"variables": variables, "text": text}


def golden_text():
    cases = [case(seed) for seed in range(24)]
    return "[\n" + ",\n".join(json.dumps(made, ensure_ascii=False) for made in cases) + "\n]\n"


if __name__ == "__main__":
    with open(GOLDEN, "w", encoding="utf-8") as file:
        file.write(golden_text())
    print(GOLDEN, file=sys.stderr)
