"""Tools that conversations offer: names, schemas and arguments are drawn anew for each of them.

So a model has to copy them from the list. A Tool knows which of its arguments play which role."""

import dataclasses

from chat.prose import prose, prose_sentence
from chat.words import ADJECTIVES, ARGUMENTS, NOUNS, OBJECTS, VERBS, invented

PATHS = "path file_path filePath filename file target_file file_name".split()
# family: (names, description, {role: (argument names, description, type)})
FAMILIES = {
    "weather": (["get weather", "weather", "current weather", "weather lookup", "forecast", "get current weather"],
                ["Get the weather of a city.", "Returns the current weather at a place.", "Look up the weather."],
                {"place": (["city", "location", "place", "town"], "Name of the city", "string")}),
    "time": (["get time", "current time", "clock", "local time", "get current time", "time in city"],
             ["Get the time in a city.", "Returns the local time of a place.", "Tell the current time."],
             {"place": (["city", "location", "place", "timezone"], "Name of the city", "string")}),
    "search": (["search", "web search", "find", "lookup", "search web", "google"],
               ["Search the web.", "Find pages on a topic.", "Looks something up on the internet."],
               {"query": (["query", "q", "text", "search query", "topic"], "What to search for", "string")}),
    "calculate": (["calculator", "calculate", "compute", "eval", "math", "evaluate expression"],
                  ["Evaluate an arithmetic expression.", "A calculator.", "Computes the value of an expression."],
                  {"expression": (["expression", "input", "formula", "expr"], "The expression", "string")}),
    "read": (["read", "read file", "view", "cat", "open file", "get file contents"],
             ["Read a file.", "Returns the contents of a file.", "Reads a file from the workspace."],
             {"path": (PATHS, "Path of the file", "string")}),
    "write": (["write", "write file", "create file", "save file", "write to file"],
              ["Write a file.", "Writes content to a file and replaces what it had.", "Create or overwrite a file."],
              {"path": (PATHS, "Path of the file", "string"),
               "content": (["content", "contents", "text", "data"], "The new content", "string")}),
    "edit": (["edit", "edit file", "str replace", "replace", "replace in file", "search replace", "update file"],
             ["Edit a file by replacing text.", "Replaces an exact string in a file.", "Performs replacements in files."],
             {"path": (PATHS, "Path of the file", "string"),
              "old": (["old string", "oldString", "old str", "old", "old text", "search"], "The text to replace", "string"),
              "new": (["new string", "newString", "new str", "new", "new text", "replace"], "The new text", "string")}),
    "patch": (["apply patch"],
              ["Apply a patch to files.", "Edits files by a patch.", "Use this to edit files."],
              {"patch": (["input", "patch", "patchText"], "The whole patch", "string")}),
    "shell": (["shell", "bash", "local shell", "run shell command", "exec command", "terminal", "run command",
               "execute command", "shell command"],
              ["Run a shell command.", "Executes a command and returns its output.", "Runs a command in a shell."],
              {"command": (["command", "cmd"], "The command", "string")}),
    "list": (["ls", "list", "list files", "list dir", "list directory"],
             ["List the files of a folder.", "Lists a directory.", "Shows which files a folder has."],
             {"folder": (["path", "dir", "folder", "directory", "dir path"], "Path of the folder", "string")}),
}
# Arguments that nobody has to give: {name: (type, description)}
OPTIONAL = {"timeout": ("integer", "Milliseconds to wait"), "workdir": ("string", "Where to run"),
            "limit": ("integer", "How many at most"), "verbose": ("boolean", "Say more"),
            "offset": ("integer", "Where to begin"), "replace_all": ("boolean", "Replace every occurrence"),
            "unit": ("string", "Unit of the answer"), "format": ("string", "How to write the answer"),
            "is_background": ("boolean", "Do not wait for the end")}
EXPLANATIONS = ["description", "explanation", "instruction", "reason"]


@dataclasses.dataclass
class Tool:
    family: str
    name: str
    schema: dict  # what the conversation lists
    keys: dict  # {role: argument name}
    verb: str = ""  # of the family "generic": what it does
    thing: str = ""
    as_list: bool = False  # the command of a shell is a list of words
    explained: str = ""  # name of a required argument that explains the call
    always: dict = dataclasses.field(default_factory=dict)  # further required arguments and their values

    def rename(self, name):
        self.name = self.schema["name"] = name

    def call(self, explanation="", **values):
        """Returns the call whose arguments have these values, by role."""
        values = {role: value for role, value in values.items() if role in self.keys}
        if self.as_list:
            values["command"] = ["bash", "-lc", values["command"]]
        arguments = {self.keys[role]: values[role] for role in self.keys if role in values}
        if self.explained:
            arguments[self.explained] = explanation
        return {"name": self.name, "arguments": {**arguments, **self.always}}


def styled(random, words, style):
    """Joins words as an identifier: snake_case, camelCase, PascalCase or kebab-case."""
    words = words.replace("_", " ").split()
    if style == "pascal":
        return "".join(word[:1].upper() + word[1:] for word in words)
    if style == "camel":
        return words[0] + "".join(word.capitalize() for word in words[1:])
    return {"snake": "_", "kebab": "-"}[style].join(words)


def _schema(random, name, description, properties, required):
    parameters = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    if random.random() < 0.25:
        parameters["additionalProperties"] = False
    schema = {"name": name, "description": description, "parameters": parameters}
    if random.random() < 0.15:
        schema["strict"] = random.random() < 0.5
    if random.random() < 0.06:
        parameters["$schema"] = "http://json-schema.org/draft-07/schema#"
    if random.random() < 0.1:  # some clients list them so
        schema = {"name": name, "parameters": parameters, "description": description}
    return schema


def _property(random, kind, description):
    made = {"type": kind}
    if description and random.random() < 0.7:
        made["description"] = description + (" " + prose_sentence(random) if random.random() < 0.05 else "")
    if random.random() < 0.1:
        made = dict(reversed(made.items()))
    return made


def _odd_property(random):
    """A property that nobody gives, of the kinds that real schemas have."""
    return random.choice([
        {"type": "object", "properties": {random.choice(NOUNS): {"type": "string"}}},
        {"type": "array", "items": {"type": random.choice(["string", "number"])}},
        {"type": "string", "enum": random.sample(ADJECTIVES, 3)},
        {"type": "number", "default": random.randint(0, 100), "description": prose_sentence(random)},
        {"type": "integer", "minimum": 0}, {"type": ["string", "null"]}])


def _described(random, description, long):
    """Adds to a description, for some tools at length, as agents' tools have it."""
    if random.random() < 0.2:
        description += " " + random.choice(["Use it with care.", "Returns text.", "It never fails.", "One call at a time.",
                                            "Prefer it to other tools.", "Paths are relative."])
    if long and random.random() < 0.6:
        description += random.choice(["\n\n", " ", "\n"]) + prose(random, random.randint(1, long))
    return description


def make_tool(random, family, style, long=0):
    """Returns a Tool of a known family under a name, with arguments and a description of its own.

    long: most further sentences of the description."""
    names, descriptions, roles = FAMILIES[family]
    name = styled(random, random.choice(names), style)
    if random.random() < 0.25 and family != "patch":
        name = random.choice([f"{name}_{invented(random)}", f"{invented(random)}_{name}", f"{name}_v{random.randint(2, 9)}",
                              f"mcp__{invented(random)}__{name}", f"{invented(random)}.{name}"])
    keys, properties = {}, {}
    order = list(roles)
    if random.random() < 0.2:
        random.shuffle(order)
    for role in order:
        choices, description, kind = roles[role]
        keys[role] = random.choice(choices)
        if " " in keys[role]:
            keys[role] = styled(random, keys[role], style if style == "camel" else "snake")
        properties[keys[role]] = _property(random, kind, description)
    as_list = family == "shell" and random.random() < 0.25
    if as_list:
        properties[keys["command"]] = {"type": "array", "items": {"type": "string"}}
    required = list(properties)
    explained = random.choice(EXPLANATIONS) if family in ("shell", "edit") and random.random() < 0.2 else ""
    if explained:
        properties[explained] = _property(random, "string", "What the call does")
        required.append(explained)
    if random.random() < 0.35:
        extra = random.choice(list(OPTIONAL))
        if extra not in properties:
            properties[extra] = _property(random, *OPTIONAL[extra])
    if random.random() < 0.1:
        properties[invented(random)] = _odd_property(random)
    description = _described(random, random.choice(descriptions), long)
    return Tool(family, name, _schema(random, name, description, properties, required), keys,
                as_list=as_list, explained=explained)


def make_generic(random, style, taken=(), long=0, verbs=VERBS, objects=OBJECTS):
    """Returns a Tool that does something to a thing, with up to three arguments."""
    while True:
        verb = random.choice(verbs) if random.random() < 0.8 else invented(random)
        thing = random.choice(objects) if random.random() < 0.7 else random.choice(NOUNS)
        if (verb, thing) not in taken:
            break
    words = f"{verb} {thing}" if random.random() < 0.8 else f"{thing} {verb}"
    name = styled(random, words, style) if random.random() < 0.85 else invented(random)
    keys, properties = {}, {}
    for argument in random.sample(ARGUMENTS, random.choice([0, 1, 1, 1, 2, 2, 3])):
        kind = "integer" if argument in ("amount", "count", "limit", "speed", "level", "volume", "hour", "number") else "string"
        keys[argument] = argument
        properties[argument] = _property(random, kind, random.choice(["", f"The {argument}", f"{argument.capitalize()} of the {thing}"]))
    article = random.choice(["the", "a"])
    description = f"{verb.capitalize()} {article} {thing}."
    if random.random() < 0.2:
        description += f" {random.choice(ADJECTIVES).capitalize()} {random.choice(NOUNS)}s too."
    required = list(properties)
    if random.random() < 0.12:
        properties[invented(random)] = _odd_property(random)
    return Tool("generic", name, _schema(random, name, _described(random, description, long), properties, required),
                keys, verb, thing)
