"""The text of a conversation, as chat_template.jinja writes it, in parts that are learned or not."""

import json


def calls_text(calls):
    """Returns the blocks of tool calls: [{"name": ..., "arguments": {...}}]."""
    return "\n".join(f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>" for call in calls)


def answer_text(message):
    """Returns what a model says after the opening of its turn, without reasoning."""
    parts = [message["content"]] if message.get("content") else []
    if message.get("tool_calls"):
        parts.append(calls_text(message["tool_calls"]))
    return "\n".join(parts)


def system_text(content, tools):
    if not tools:
        return content
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (content + "\n\n" if content else "") + f"# Tools\n\n{listed}"


def message_parts(message):
    """Returns [(text, learned)] of one message; the model's own words are learned."""
    if message["role"] != "assistant":
        return [(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n", False)]
    parts = [("<|im_start|>assistant\n", False)]
    said = answer_text(message)
    if message.get("reasoning_content"):
        parts.append(("<think>\n", False))
        said = f"{message['reasoning_content']}\n</think>\n\n{said}"
    return [*parts, (said + "<|im_end|>", True), ("\n", False)]


def system_parts(content, tools):
    text = system_text(content, tools)
    return [(f"<|im_start|>system\n{text}<|im_end|>\n", False)] if text else []
