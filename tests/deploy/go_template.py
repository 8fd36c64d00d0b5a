"""The part of Go's text/template, with Helm's functions, that the chart in deploy/helm uses.

Strict where Go is lenient: a missing value, or a function or action that is not listed here, is an
error. So a chart that this renders has no misspelt values."""

import json
import re

import yaml

ACTION = re.compile(r"\{\{(-\s)?\s*(.*?)\s*?(\s-)?\}\}", re.DOTALL)
TOKEN = re.compile(r'\s*(?:("(?:[^"\\]|\\.)*")|(\d+)|(\$?\w*(?:\.\w+)+|\.|\$\w*)|(\w+)|([|()]))')


class TemplateError(Exception):
    pass


def shown(value):
    """Formats a value as an action prints it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if abs(value) >= 10**6:
            raise TemplateError(f"{value}: Helm prints numbers from a million on as 1e+06; a text is meant")
        return str(value)
    if isinstance(value, str):
        return value
    raise TemplateError(f"{value!r} is printed without toYaml")


def to_yaml(value):
    return yaml.safe_dump(value, default_flow_style=False, width=10**6).removesuffix("\n...\n").rstrip("\n")


def nindent(spaces, text):
    return "\n" + "\n".join(" " * spaces + line if line else line for line in text.split("\n"))


FUNCTIONS = {
    "quote": lambda value: json.dumps(shown(value), ensure_ascii=False),
    "toYaml": to_yaml,
    "nindent": nindent,
    "add": lambda *numbers: sum(numbers),
    "printf": lambda form, *values: form % tuple(map(shown, values)),
    "not": lambda value: not value,
}


class Template:
    """Parses the files of a chart: {name: text}. Definitions are shared."""

    def __init__(self, files):
        self._definitions, self._files = {}, {}
        for name, text in files.items():
            self._place = name
            pieces, before = [], 0
            for match in ACTION.finditer(text):
                pieces += [text[before:match.start()], match]
                before = match.end()
            pieces.append(text[before:])
            for i in range(1, len(pieces), 2):
                if pieces[i][1]:
                    pieces[i - 1] = pieces[i - 1].rstrip()
                if pieces[i][3]:
                    pieces[i + 1] = pieces[i + 1].lstrip()
            self._pieces = pieces
            self._at = 0
            self._files[name], _ = self._block(())

    def render(self, name, values):
        return self._run(self._files[name], values, {"$": values})

    def _fail(self, what):
        raise TemplateError(f"{self._place}: {what}")

    def _block(self, ends):
        """Parses nodes up to one of the actions `ends`; returns that action, too."""
        nodes = []
        while True:
            if self._pieces[self._at]:
                nodes.append(("text", self._pieces[self._at]))
            self._at += 1
            if self._at >= len(self._pieces):
                if ends:
                    self._fail("an action has no end")
                return nodes, None
            action = self._pieces[self._at][2]
            self._at += 1
            word, _, rest = action.partition(" ")
            if action.startswith("/*") and action.endswith("*/"):
                continue
            if word in ("end", "else"):
                if word not in ends:
                    self._fail(f"{action} without a begin")
                return nodes, action
            if word == "define":
                self._definitions[json.loads(rest)], _ = self._block(("end",))
            elif word in ("if", "with"):
                nodes.append(self._branch(word, rest))
            elif word == "range":
                names, _, over = rest.partition(":=")
                body, _ = self._block(("end",))
                nodes.append(("range", [name.strip() for name in names.split(",")], over, body))
            else:
                nodes.append(("print", action))

    def _branch(self, word, condition):
        body, end = self._block(("end", "else"))
        otherwise = []
        if end.startswith("else if "):
            otherwise = [self._branch("if", end.removeprefix("else if "))]
        elif end == "else":
            otherwise, _ = self._block(("end",))
        return (word, condition, body, otherwise)

    def _run(self, nodes, dot, variables):
        out = ""
        for kind, *node in nodes:
            if kind == "text":
                out += node[0]
            elif kind == "print":
                out += shown(self._value(node[0], dot, variables))
            elif kind == "range":
                names, over, body = node
                for key, item in sorted(self._value(over, dot, variables).items()):
                    out += self._run(body, item, {**variables, names[0]: key, names[1]: item})
            else:
                condition, body, otherwise = node
                value = self._value(condition, dot, variables)
                inner = value if kind == "with" and value else dot
                out += self._run(body if value else otherwise, inner, variables)
        return out

    def _value(self, text, dot, variables):
        """Evaluates a pipeline."""
        tokens, at = [], 0
        while at < len(text.rstrip()):
            match = TOKEN.match(text, at)
            if match is None:
                raise TemplateError(f"{text!r}: not understood from {text[at:]!r} on")
            tokens.append(match)
            at = match.end()
        commands = [[]]
        for token in tokens:
            if token[5] == "|":
                commands.append([])
            elif token[5]:
                raise TemplateError(f"{text!r}: parentheses are not among what the chart uses")
            else:
                commands[-1].append(token)
        piped = []
        for command in commands:
            if command and command[0][4]:
                arguments = [self._operand(token, dot, variables) for token in command[1:]] + piped
                piped = [self._call(command[0][4], arguments, variables)]
            elif len(command) == 1 and not piped:
                piped = [self._operand(command[0], dot, variables)]
            else:
                raise TemplateError(f"{text!r}: expected a function")
        return piped[0]

    def _operand(self, token, dot, variables):
        if token[1]:
            return json.loads(token[1])
        if token[2]:
            return int(token[2])
        if not token[3]:
            raise TemplateError(f"{token[0]!r}: expected a value")
        first, *fields = token[3].split(".")
        value = variables[first] if first else dot
        for field in filter(None, fields):
            if field not in value:
                raise TemplateError(f"{token[3]}: there is no value {field!r}")
            value = value[field]
        return value

    def _call(self, name, arguments, variables):
        if name == "include":
            definition, dot = arguments
            return self._run(self._definitions[definition], dot, {"$": dot})
        if name not in FUNCTIONS:
            raise TemplateError(f"{name}: expected one of include, {', '.join(FUNCTIONS)}")
        return FUNCTIONS[name](*arguments)
