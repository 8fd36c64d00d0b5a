"""A chat with tools through OpenAI's API, without any client library. The tools are a calculator, and
files that this program keeps in its memory.

    python3 tools.py --server http://127.0.0.1:8080 "What is 1234 * 56?"
"""

import argparse
import http.client
import json
import operator
import re
import sys
import urllib.error
import urllib.request
from typing import Any, Callable

Json = dict[str, Any]
MOST_ROUNDS = 8  # of calls before an answer


def calculate(expression: str) -> str:
    sides = re.fullmatch(r"\s*(-?\d+)\s*([-+*])\s*(-?\d+)\s*", expression)
    if sides is None:
        return "error: expected a sum, a difference or a product of two numbers"
    does = {"+": operator.add, "-": operator.sub, "*": operator.mul}[sides[2]]
    return str(does(int(sides[1]), int(sides[3])))


def write_file(path: str, content: str) -> str:
    FILES[path] = content
    return "ok"


def read_file(path: str) -> str:
    return FILES.get(path, "error: no such file")


def tool(name: str, description: str, **arguments: str) -> Json:
    """Describes a tool whose arguments, {name: meaning}, are texts."""
    properties = {name: {"type": "string", "description": meaning} for name, meaning in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"type": "function",
            "function": {"name": name, "description": description, "parameters": parameters}}


FILES: dict[str, str] = {}
FUNCTIONS: dict[str, Callable[..., str]] = {"calculate": calculate, "write_file": write_file,
                                             "read_file": read_file}
TOOLS = [tool("calculate", "Evaluate an arithmetic expression.", expression="The expression"),
         tool("write_file", "Write a file.", path="Path of the file", content="The new content"),
         tool("read_file", "Read a file.", path="Path of the file")]


def answer(server: str, messages: list[Json]) -> Json:
    """Returns the model's next message; it has a text, or calls to tools."""
    body = {"messages": messages, "tools": TOOLS, "temperature": 0, "max_tokens": 400}
    request = urllib.request.Request(f"{server}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        message: Json = json.load(response)["choices"][0]["message"]
    return message


def run(call: Json) -> str:
    """Returns what the tool says."""
    function = call["function"]
    try:
        return FUNCTIONS[function["name"]](**json.loads(function["arguments"]))
    except (KeyError, TypeError, ValueError) as error:
        return f"error: {error}"


def say(server: str, messages: list[Json], text: str) -> None:
    messages.append({"role": "user", "content": text})
    for _ in range(MOST_ROUNDS):
        message = answer(server, messages)
        messages.append(message)
        if message["content"]:
            print(message["content"])
        for call in message.get("tool_calls", []):
            result = run(call)
            print(f"  {call['function']['name']} {call['function']['arguments']} -> {result}")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if "tool_calls" not in message:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description="A chat with tools through OpenAI's API.")
    parser.add_argument("--server", default="http://127.0.0.1:8080", help="its HTTP address")
    parser.add_argument("text", nargs="+", help="what the user says, turn by turn")
    arguments = parser.parse_args()
    messages: list[Json] = []
    for text in arguments.text:
        print(f"> {text}")
        say(arguments.server, messages, text)


if __name__ == "__main__":
    try:
        main()
    except urllib.error.HTTPError as error:
        sys.exit(f"tools.py: {error.read().decode()}")
    except OSError as error:
        sys.exit(f"tools.py: {error}")
    except http.client.HTTPException:
        sys.exit("tools.py: --server: this address does not speak HTTP; expected that of --http-listen")
