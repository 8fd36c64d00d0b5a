"""Long prompts as coding agents send them: manuals, many tools with nested schemas, and notes on the surroundings.

All of it means nothing: it stands between a model and the few tokens of its prompt that it needs."""

from chat import commands, words
from chat.prose import file_name, number, person, phrase, prose, prose_sentence
from chat.toolbox import EXPLANATIONS, make_generic, make_tool, styled

CHARACTERS_PER_TOKEN = 2.9  # about, in what this file makes
ENDINGS = ["s", "ed", "ing", "er", "ly", "able", "ment", "ness", "ful"]
AGENT_OBJECTS = """agent session goal skill plan todo memory terminal process input output thread image notebook cell
workspace checkpoint subtask reminder worktree resource prompt monitor shell cron""".split()
AGENT_VERBS = """spawn resume update create list get set send wait close fetch view write read stop kill inspect
save load enter exit poll""".split()
TITLES = """overview rules tools planning style safety editing testing answers formatting workflow context memory
environment permissions skills reviews commits examples tone limits sandbox tasks""".split()


def term(random):
    """Returns a word of the kind that only manuals have."""
    form = random.random()
    if form < 0.35:
        return random.choice(words.PROSE) + random.choice(ENDINGS)
    if form < 0.5:
        return words.invented(random, random.random() < 0.5)
    if form < 0.6:
        return f"`{file_name(random)}`"
    if form < 0.7:
        return f"`{random.choice(words.PROSE)}_{random.choice(words.NOUNS)}`"
    if form < 0.76:
        return random.choice(words.PROSE).upper()
    if form < 0.82:
        return f"{random.choice(words.PROSE)}{random.choice(words.NOUNS).capitalize()}"
    if form < 0.88:
        return f"--{random.choice(words.PROSE)}"
    if form < 0.94:
        return f"\"{phrase(random, 3)}\""
    return random.choice([f"({phrase(random, 3)})", number(random), "e.g.", "i.e.", f"/{words.invented(random)}/{words.invented(random)}",
                          f"<{random.choice(words.NOUNS)}>", f"**{random.choice(words.PROSE)}**", "->", f"{random.choice(words.PROSE)}/*"])


def rule(random, names):
    """Returns a sentence with odd words; names: of tools, of this conversation or of none."""
    w = prose_sentence(random)[:-1].split(" ")
    for _ in range(random.randint(0, len(w) // 3)):
        w.insert(random.randint(1, len(w)), term(random))
    if names and random.random() < 0.15:
        w.insert(random.randint(1, len(w)), random.choice(["`{}`", "{}", "the {} tool", "'{}'"]).format(random.choice(names)))
    for i in range(len(w) - 1):
        if random.random() < 0.06 and w[i][-1].isalnum():
            w[i] += random.choice([",", ",", ";", ":", " \u2014"])
    return " ".join(w) + random.choice([".", ".", ".", ".", "!", ":"])


def _example(random, names):
    """A dialogue or a command that nobody asked for."""
    form = random.random()
    if form < 0.4:
        return f"```{random.choice(['', 'bash', 'sh', 'json', 'python'])}\n" + "\n".join(
            commands.command(random) for _ in range(random.randint(1, 4))) + "\n```"
    if form < 0.6:
        return f"- `{commands.command(random)}` {rule(random, names)}"
    tag = random.choice(["example", "good", "bad", words.invented(random)])
    said = random.choice([f"run {commands.command(random)}", f"replace {phrase(random, 2)} in {file_name(random)}", phrase(random, 6)])
    did = random.choice([f"[{random.choice(names or ['tool'])}: {commands.command(random)}]", f"I {phrase(random, 6)}.", phrase(random, 5)])
    return f"<{tag}>\nuser: {said}\nassistant: {did}\n</{tag}>"


def manual(random, n_tokens, names=()):
    """Returns about n_tokens of headings, rules, lists and examples."""
    lines, left = [], n_tokens * CHARACTERS_PER_TOKEN
    names = [*names, *(styled(random, f"{random.choice(AGENT_VERBS)} {random.choice(AGENT_OBJECTS)}", "snake") for _ in range(3))]
    while left > 0:
        form = random.random()
        if form < 0.1:
            line = "\n" + "#" * random.randint(1, 4) + " " + random.choice([random.choice(TITLES), phrase(random, 3)]).capitalize() + "\n"
        elif form < 0.5:
            line = random.choice(["- ", "- ", "  - ", "* ", f"{random.randint(1, 9)}. ", "- **{}**: "]).format(phrase(random, 2)) + rule(random, names)
        elif form < 0.58:
            line = _example(random, names)
        elif form < 0.62:
            line = prose(random, random.randint(1, 3))
        else:
            line = " ".join(rule(random, names) for _ in range(random.randint(1, 4)))
        lines.append(line)
        left -= len(line) + 1
    return "\n".join(lines).strip()


# ---- tools ----

_SIMPLE = ["string", "string", "string", "integer", "number", "boolean"]


def _property(random, names, depth=0):
    """A property that no call gives, of the kinds and depths that agents' tools have."""
    form = random.random()
    told = {"description": " ".join(rule(random, names) for _ in range(random.choice([1, 1, 1, 2, 4])))} if random.random() < 0.85 else {}
    if form < 0.6 or depth > 2:
        made = {"type": random.choice(_SIMPLE)}
        if random.random() < 0.1:
            made["type"] = [made["type"], "null"]
        if made["type"] == "string" and random.random() < 0.25:
            made["enum"] = random.sample(words.PROSE, random.randint(2, 5))
        if made["type"] in ("integer", "number") and random.random() < 0.3:
            made[random.choice(["minimum", "default", "maximum", "exclusiveMinimum"])] = random.randint(0, 9000)
    elif form < 0.85:
        made = {"type": "array", "items": _property(random, names, depth + 1)}
    else:
        inner = {key: _property(random, names, depth + 1) for key in _keys(random, random.randint(1, 3))}
        made = {"type": "object", "properties": inner, "required": random.sample(list(inner), random.randint(0, len(inner))),
                "additionalProperties": False}
    return {**told, **made} if random.random() < 0.5 else {**made, **told}


def _keys(random, n):
    style = random.choice(["snake", "snake", "camel"])
    return {styled(random, " ".join(random.choice([words.PROSE, words.ARGUMENTS, AGENT_OBJECTS])[random.randrange(24)]
                                    for _ in range(random.choice([1, 2, 2, 3]))), style): None for _ in range(n)}


def _burdened(random, tool, n_tokens, names):
    """Gives a tool what agents' tools have: a long description, optional and further required arguments."""
    parameters = tool.schema["parameters"]
    properties, required = parameters["properties"], parameters.get("required", [])
    more = {key: _property(random, names) for key in _keys(random, random.choice([0, 0, 1, 2, 3, 5])) if key not in properties}
    if tool.family == "shell" and random.random() < 0.3:
        key = random.choice(["is_background", "background", "login", "tty", "run_in_background"])
        more[key] = {"type": "boolean", "description": rule(random, names)}
        if key not in properties and random.random() < 0.6:
            tool.always[key] = False
            required = [*required, key]
    if tool.family == "shell" and not tool.explained and random.random() < 0.35:  # that nobody has to give
        more.setdefault(random.choice(EXPLANATIONS), {"type": "string", "description": rule(random, names)})
    for key in properties:
        if random.random() < 0.3:
            properties[key]["description"] = properties[key].get("description", "The value") + ". " + rule(random, names)
    mixed = [*properties.items(), *((key, value) for key, value in more.items() if key not in properties)]
    if random.random() < 0.5:
        random.shuffle(mixed)
    parameters["properties"] = dict(mixed)
    if required:
        parameters["required"] = required
    left = n_tokens - len(repr(parameters)) / CHARACTERS_PER_TOKEN
    if left > 20:
        tool.schema["description"] += random.choice(["\n\n", " ", "\n"]) + manual(random, left, names)
    if random.random() < 0.2:
        tool.schema = {"type": "function", **tool.schema}
    return tool


def helper(random, style, taken):
    """A tool of an agent's own housekeeping: it is called by what its description says, like any other."""
    while True:
        tool = make_generic(random, style, taken, 0, AGENT_VERBS, AGENT_OBJECTS)
        if tool.name.lower() not in ("get_time", "read_file"):
            return tool


def agent_tools(random, n_tokens):
    """Returns the Tools of an agent, in about n_tokens: a shell, others for files, and much else."""
    style = random.choice(["snake", "snake", "snake", "snake", "camel", "kebab", "pascal"])
    families = random.choice([["shell"], ["shell"], ["shell"], ["shell", "patch"], ["shell", "read", "write", "edit", "list"],
                              ["shell", "read", "write", "edit", "search"], ["shell", "read", "edit", "write"], ["shell", "edit"],
                              ["read", "write", "edit"], ["shell", "patch", "search"]])
    n = max(1, min(random.randint(3, 25), n_tokens // 110))
    made = [make_tool(random, family, style) for family in families[:n]]
    while len(made) < n:
        made.append(helper(random, style, [(tool.verb, tool.thing) for tool in made]))
    random.shuffle(made)
    if random.random() < 0.35:
        group, begin = f"{random.choice(AGENT_OBJECTS)}_{words.invented(random)}", random.randrange(n)
        for tool in made[begin:begin + random.randint(1, 6)]:
            if tool.family == "generic":
                tool.rename(f"{group}__{tool.name}")
    unique = list({tool.name: tool for tool in made}.values())
    weights = [random.lognormvariate(0, 1.2) for _ in unique]
    names = [tool.name for tool in unique]
    return [_burdened(random, tool, n_tokens * weight / sum(weights), names) for tool, weight in zip(unique, weights)]


# ---- surroundings ----

def _facts(random):
    return {"cwd": f"/{words.invented(random)}/{words.invented(random)}/project", "shell": random.choice(["bash", "zsh", "sh"]),
            "current_date": f"20{random.randint(20, 39)}-{random.randint(1, 12):02d}-{random.randint(1, 28):02d}",
            "timezone": f"{random.choice(words.CITIES)}/{words.invented(random, True)}", "platform": random.choice(["linux", "darwin", "win32"]),
            "network": random.choice(["enabled", "restricted"]), "approval": random.choice(["never", "always", "on-request"]),
            "user": person(random), "git": random.choice(["yes", "no"]), "root": f"<path>/{words.invented(random)}</path>"}


def surroundings(random):
    """Returns a block that tells where an agent works, in tags."""
    tag = random.choice(["environment_context", "env", "environment", "workspace", "system-reminder", words.invented(random)])
    some = random.sample(list(_facts(random).items()), random.randint(2, 7))
    form = random.random()
    lines = [f"  <{key}>{value}</{key}>" if form < 0.5 else f"{key.replace('_', ' ').capitalize()}: {value}" for key, value in some]
    return f"<{tag}>\n" + "\n".join(lines) + f"\n</{tag}>"


def reminder(random, n_tokens, names):
    tag = random.choice(["system-reminder", "system-reminder", "reminder", "instructions", "skills", "context", words.invented(random)])
    return f"<{tag}>\n{manual(random, n_tokens, names)}\n</{tag}>"
