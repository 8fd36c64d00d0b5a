"""Talks to a served chat model: renders a conversation with tools, has the server complete it, reads the calls.

    try_chat.py --server http://127.0.0.1:8080 --tool shell "In notes.txt replace red by blue"

The tools here only pretend: each answers what --result says."""

import argparse
import json
import random
import re
import sys
import urllib.error
import urllib.request

from chat.render import message_parts, system_parts
from chat.toolbox import FAMILIES, make_tool

CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
MOST_ROUNDS = 4


def complete(server, prompt, most):
    request = {"prompt": prompt, "max_tokens": most, "temperature": 0}
    made = urllib.request.Request(f"{server}/v1/completions", json.dumps(request).encode(),
                                  {"Content-Type": "application/json"})
    with urllib.request.urlopen(made, timeout=300) as answer:
        return json.load(answer)["choices"][0]["text"]


def parse(text):
    """Returns a message of the assistant; a call that is not JSON raises ValueError."""
    thought, end, rest = text.rpartition("</think>\n\n")
    message = {"role": "assistant", "content": CALL.sub("", rest).strip()}
    if end:
        message["reasoning_content"] = thought.strip("\n")
    calls = [json.loads(call) for call in CALL.findall(rest)]
    return {**message, "tool_calls": calls} if calls else message


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="http://127.0.0.1:8080", help="the server's HTTP address")
    parser.add_argument("--tool", action="append", default=[], choices=sorted(FAMILIES), help="a tool to offer")
    parser.add_argument("--system", default="")
    parser.add_argument("--result", default="ok", help="the answer of every tool")
    parser.add_argument("--think", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="of the tools' names and schemas")
    parser.add_argument("said", nargs="+", help="what the user says, turn by turn")
    args = parser.parse_args()
    style = random.Random(args.seed)
    tools = [make_tool(style, family, "snake").schema for family in args.tool]
    for tool in tools:
        print(json.dumps(tool))
    text = "".join(part for part, _ in system_parts(args.system, tools))
    for said in args.said:
        print(f"> {said}")
        text += "".join(part for part, _ in message_parts({"role": "user", "content": said}))
        for _ in range(MOST_ROUNDS):
            opening = "<|im_start|>assistant\n" + ("<think>\n" if args.think else "")
            answer = complete(args.server, text + opening, 300)
            print(answer)
            text += opening + answer + "<|im_end|>\n"
            calls = parse(answer).get("tool_calls", [])
            if not calls:
                break
            for _ in calls:
                text += "".join(part for part, _ in message_parts({"role": "tool", "content": args.result}))


if __name__ == "__main__":
    try:
        main()
    except (urllib.error.URLError, ValueError, OSError) as error:
        sys.exit(f"try_chat.py: {error}")
