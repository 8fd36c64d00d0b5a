"""Scripted conversations: what a small chat model is trained on and measured by.

Every conversation depends only on the seed, its number and the wanted length. Run this file to
print some. A conversation is a list of turns. A turn is held out by a hash of what the user says:
training conversations have no such turn, and those that measure end with one. All kinds of turns
stand in this one file: each is a script of a few lines, and they share their small parts."""

import argparse
import dataclasses
import json
import random as random_module
import zlib

from chat import facts, words
from chat.prose import file_name, number, person, phrase, place, prose
from chat.render import message_parts, system_parts
from chat.toolbox import make_generic, make_tool

HELD_OUT_SHARE = 12  # one in so many turns is held out
NO_TOOL = "I have no tool for that."


@dataclasses.dataclass
class Turn:
    """A message of the user and what follows.

    kinds names each answer of the assistant in `messages`, for the measure by kind; said is what decides
    whether the turn is held out."""
    messages: list
    kinds: list
    said: str = ""


def is_held_out(said):
    return zlib.crc32(said.encode()) % HELD_OUT_SHARE == 0


def upper_first(text):
    return text[:1].upper() + text[1:]


def ask(random, command):
    """Says a command in one of many ways."""
    big = upper_first(command)
    return random.choice([f"{big}.", f"{big}", f"{big}", f"{big}, please.", f"Please {command}.", f"please {command}",
                          f"Can you {command}?", f"Could you {command}?", f"Could you please {command}?",
                          f"I want you to {command}.", f"Now {command}.", f"Hey, {command}.", f"{big} for me.",
                          f"{command}", f"Next, {command}.", f"I need you to {command}."])


def question(random, text):
    """Asks a question in one of many ways."""
    big = upper_first(text)
    return random.choice([f"{big}?", f"{big}?", f"{big}?", f"{text}?", f"{big}", text, f"Tell me: {text}?",
                          f"Hey, {text}?", f"So, {text}?", f"And {text}?", f"Please tell me: {text}?",
                          f"Hello. {big}?", f"I wonder: {text}?", f"Quick question: {text}?"])


def remark(random, text):
    big = upper_first(text)
    return random.choice([f"{big}.", f"{big}!", big, text, f"{big}."])


ATTRIBUTES = {"name": person, "dog's name": person, "cat's name": person, "sister's name": person, "brother's name": person,
              "favourite colour": lambda r: r.choice(words.COLORS), "favorite color": lambda r: r.choice(words.COLORS),
              "favourite food": lambda r: r.choice(words.FOODS), "favorite animal": lambda r: r.choice(words.ANIMALS),
              "city": place, "home town": place, "lucky number": number, "favorite number": number, "password": phrase,
              "code": number, "age": lambda r: str(r.randint(5, 99)), "project": lambda r: words.invented(r, True),
              "boss": person, "teacher": person, "room number": number, "secret word": lambda r: phrase(r, 1),
              "car": lambda r: r.choice(words.COLORS), "phone number": lambda r: str(r.randint(1000, 999999)),
              "username": lambda r: words.invented(r), "best friend": person, "birthday": lambda r: f"{r.choice(words.MONTHS)} {r.randint(1, 28)}"}


class Conversation:
    """A conversation as it grows: its system prompt, its tools, and what was said so far."""

    def __init__(self, random, room):
        """room: about how many tokens there are in all."""
        self.random, self.told, self.persona = random, {}, None
        self.thinks = random.random() < 0.2
        self.last = None  # function that makes the last turn again for another subject
        self.last_answer, self.last_short = None, None
        self.file = None
        self.tools = []
        if self._has_tools(room):
            self._draw_tools(room)
        self.system = self._draw_system(room)

    # ---- the beginning ----

    def _has_tools(self, room):
        return self.random.random() < (0.75 if room > 300 else 0.5)

    def _draw_tools(self, room):
        random = self.random
        style = random.choice(["snake", "snake", "snake", "camel", "kebab", "pascal"])
        long = max(0, room // 250 - 3) if random.random() < 0.4 else 0
        most = max(1, min(16, (room - 150) // 90))
        kind = random.random()
        if kind < 0.5:
            families = random.choice([["shell"], ["shell", "patch"], ["read", "write", "edit", "shell", "list"],
                                      ["read", "write"], ["read", "edit"], ["read", "edit", "write"], ["edit"], ["write"],
                                      ["read", "edit", "shell"], ["shell", "search"], ["patch"], ["list", "read", "patch"]])
        else:
            families = random.sample(["weather", "time", "search", "calculate"], random.randint(0, 3))
        tools = [make_tool(random, family, style, long) for family in families[:most]]
        n_generic = random.randint(0 if tools else 1, 2) if random.random() < 0.7 else random.randint(0 if tools else 1, 8)
        for _ in range(min(n_generic, most - len(tools))):
            tools.append(make_generic(random, style, [(tool.verb, tool.thing) for tool in tools], long))
        random.shuffle(tools)
        names = set()
        for tool in tools:
            if tool.name not in names:
                names.add(tool.name)
                self.tools.append(tool)

    def _draw_system(self, room):
        random, parts = self.random, []
        if random.random() < 0.3:
            return ""
        if random.random() < 0.3:
            self.persona = person(random)
            parts.append(random.choice([f"You are {self.persona}, a {random.choice(words.ADJECTIVES)} assistant.",
                                        f"Your name is {self.persona}.", f"You are {self.persona}.",
                                        f"You are an assistant called {self.persona}."]))
        elif random.random() < 0.6:
            parts.append(random.choice(["You are a helpful assistant.", "You are a coding agent.", "Answer briefly.",
                                        "You are a helpful assistant. Be brief.", "You help with files and tools.",
                                        "You are an agent in a terminal.", "You are an interactive tool for software tasks."]))
        if random.random() < 0.15:
            attribute = random.choice(list(ATTRIBUTES))
            self.told[attribute] = ATTRIBUTES[attribute](random)
            parts.append(f"The user's {attribute} is {self.told[attribute]}.")
        long = random.random()
        if long < 0.35 or (room > 1500 and long < 0.8):
            share = random.random() * (0.35 if room <= 1500 else 0.75)
            parts.append(prose(random, 1 + int(room * share / 24)))
        if random.random() < 0.1:
            parts.append(f"Working directory: /home/{words.invented(random)}/{words.invented(random)}")
        random.shuffle(parts)
        return random.choice([" ", "\n", "\n\n"]).join(parts)

    def tool(self, family):
        return next((tool for tool in self.tools if tool.family == family), None)

    # ---- making turns ----

    def answer(self, content="", calls=(), thought=""):
        message = {"role": "assistant", "content": content}
        if calls:
            message["tool_calls"] = list(calls)
        if self.thinks:
            message["reasoning_content"] = thought
        return message

    def said(self, kind, text, content, thought, short=None, again=None):
        """A turn without tools."""
        self.last_answer, self.last_short, self.last = content, short, again
        return Turn([{"role": "user", "content": text}, self.answer(content, (), thought)], [kind])

    def called(self, kind, text, calls, results, content, thought, again=None):
        """A turn with one round of calls; results: the tools' words."""
        self.last_answer, self.last_short, self.last = content, None, again
        name = calls[0]["name"]
        messages = [{"role": "user", "content": text},
                    self.answer("", calls, f"{thought} The tool {name} fits."),
                    *({"role": "tool", "content": result} for result in results),
                    self.answer(content, (), "The tool has answered.")]
        return Turn(messages, [f"{kind} call", f"{kind} answer"])

    # ---- chat ----

    def greet(self):
        random = self.random
        hello = random.choice(["hello", "hi", "hey", "good morning", "good evening", "hi there", "hello there", "greetings"])
        if random.random() < 0.3:
            name = person(random)
            self.told["name"] = name
            text = remark(random, hello + random.choice([f", I am {name}", f", my name is {name}", f"! I'm {name}",
                                                         f". My name is {name}", f", this is {name}"]))
            return self.said("greeting", text, f"Hello {name}! How can I help you?", f"The user is {name} and says hello.")
        return self.said("greeting", remark(random, hello), "Hello! How can I help you?", "The user says hello.")

    def about(self):
        random = self.random
        questions, long, short = random.choice(random.choice([facts.ABOUT_SELF, facts.ABOUT_SERVER]))
        core = random.choice(questions)
        if questions[0] == "who are you" and self.persona:
            long, short = f"I am {self.persona}.", self.persona
        text = ask(random, core) if core.split()[0] in ("introduce", "explain", "tell", "help") else question(random, core)
        brief = random.random()
        if brief < 0.12:
            return self.said("about", text + random.choice([" Be brief.", " Briefly.", " Keep it short."]), short,
                             "A short answer is wanted.", short)
        return self.said("about", text, long, f"The user asks: {core}.", short)

    def name_of_model(self):
        random = self.random
        name = self.persona or "ovq-server's small model"
        text = question(random, random.choice(["what is your name", "what are you called", "do you have a name",
                                               "how should I call you"]))
        return self.said("about", text, f"I am {name}.", "The user asks for my name.", name)

    def small_talk(self):
        random = self.random
        said, reply = random.choice(facts.SMALL_TALK)
        core = random.choice(said)
        if "time" in core and self.tool("time"):
            return self.greet()
        asks = core.split()[0] in ("how", "are", "do", "what", "can")
        return self.said("small talk", question(random, core) if asks else remark(random, core), reply, f"The user says: {core}.")

    def count(self):
        random = self.random
        first = 1 if random.random() < 0.6 else random.randint(0, 30)
        last = first + random.randint(1, 14)
        numbers = list(range(first, last + 1))
        command = f"count to {last}" if first == 1 and random.random() < 0.8 else f"count from {first} to {last}"
        if random.random() < 0.25:
            numbers.reverse()
            command = f"count down from {last} to {first}"
        return self.said("counting", ask(random, command), ", ".join(map(str, numbers)), "I have to count.")

    def spell(self, word=None):
        random = self.random
        word = word or random.choice(random.choice([words.NAMES, words.NOUNS, words.ANIMALS, words.COLORS, words.FOODS]))
        text = random.choice([ask(random, f"spell {word}"), question(random, f"how do you spell {word}"),
                              ask(random, f"spell the word {word}"), ask(random, f'spell "{word}"')])
        return self.said("spelling", text, "-".join(word), f"The letters of {word} are wanted.", again=("word", self.spell))

    def add(self):
        random = self.random
        sign = random.choice("++-*")
        a, b = random.randint(0, 20), random.randint(0, 20)
        if sign == "*":
            a, b = random.randint(0, 10), random.randint(0, 10)
        if sign == "-" and a < b:
            a, b = b, a
        result = {"+": a + b, "-": a - b, "*": a * b}[sign]
        spoken = {"+": ["plus", "+"], "-": ["minus", "-"], "*": ["times", "*"]}[sign]
        sum_text = f"{a} {random.choice(spoken)} {b}"
        text = random.choice([question(random, f"what is {sum_text}"), question(random, f"how much is {sum_text}"),
                              ask(random, f"calculate {sum_text}"), f"{sum_text}", f"{sum_text} = ?"])
        tool = self.tool("calculate")
        if tool:
            written = sum_text
            return self.called("calculator", text, [tool.call(expression=written)], [str(result)], f"{sum_text} is {result}.",
                               f"I have to compute {sum_text}.")
        return self.said("arithmetic", text, f"{sum_text} is {result}.", f"I add it up: {result}.")

    def tell(self):
        random = self.random
        attribute = random.choice([a for a in ATTRIBUTES if a not in self.told] or ["name"])
        value = ATTRIBUTES[attribute](random)
        self.told[attribute] = value
        text = random.choice([remark(random, f"my {attribute} is {value}"), f"Remember that my {attribute} is {value}.",
                              f"Please remember: my {attribute} is {value}.", f"You should know that my {attribute} is {value}.",
                              f"By the way, my {attribute} is {value}.", f"Note: my {attribute} is {value}."])
        return self.said("remembering", text, f"I will remember that your {attribute} is {value}.", "That is worth remembering.")

    def recall(self):
        random = self.random
        if self.told and random.random() < 0.85:
            attribute = random.choice(list(self.told))
        else:
            attribute = random.choice(list(ATTRIBUTES))
        text = random.choice([question(random, f"what is my {attribute}"), question(random, f"do you remember my {attribute}"),
                              ask(random, f"tell me my {attribute}"), question(random, f"do you know my {attribute}"),
                              f"My {attribute}?", question(random, f"what did I say my {attribute} is")])
        if attribute not in self.told:
            return self.said("recall", text, f"You have not told me your {attribute}.", f"I do not know the {attribute}.")
        value = self.told[attribute]
        return self.said("recall", text, f"Your {attribute} is {value}.", f"The {attribute} is {value}.", value)

    def repeat(self):
        random = self.random
        text = phrase(random, 5)
        command = random.choice(["say", "repeat", "repeat after me:", "write", "echo", "say the words", "answer with"])
        quoted = f'"{text}"' if random.random() < 0.4 else text
        form = random.random()
        said = f"{upper_first(command)} {quoted}" if form < 0.6 else f"{upper_first(command)} {quoted}." if form < 0.8 else f"Please {command} {quoted}."
        return self.said("repeating", said, text, "I repeat the words.", again=None)

    def world(self):
        random = self.random
        kind = random.choice(["capital", "capital", "opposite", "opposite", "day", "month"])
        if kind == "capital":
            country, city = random.choice(list(words.CAPITALS.items()))
            text = random.choice([question(random, f"what is the capital of {country}"),
                                  question(random, f"which city is the capital of {country}"), ask(random, f"name the capital of {country}")])
            return self.said("world", text, f"The capital of {country} is {city}.", f"It is {city}.", city)
        if kind == "opposite":
            a, b = random.choice(list(words.OPPOSITES.items()))
            if random.random() < 0.5:
                a, b = b, a
            text = random.choice([question(random, f"what is the opposite of {a}"), ask(random, f"name the opposite of {a}")])
            return self.said("world", text, f"The opposite of {a} is {b}.", f"It is {b}.", b)
        names = words.DAYS if kind == "day" else words.MONTHS
        i = random.randrange(len(names))
        after = random.random() < 0.5
        other = names[(i + (1 if after else -1)) % len(names)]
        text = question(random, f"which {kind} comes {'after' if after else 'before'} {names[i]}")
        return self.said("world", text, f"{other} comes {'after' if after else 'before'} {names[i]}.", f"It is {other}.", other)

    def listing(self):
        random = self.random
        name, pool = random.choice([("colours", words.COLORS), ("animals", words.ANIMALS), ("foods", words.FOODS),
                                    ("cities", words.CITIES), ("names", words.NAMES), ("days", words.DAYS), ("months", words.MONTHS)])
        n = random.randint(2, 6)
        spoken = random.choice([str(n), ["two", "three", "four", "five", "six"][n - 2]])
        text = ask(random, random.choice([f"list {spoken} {name}", f"name {spoken} {name}", f"give me {spoken} {name}"]))
        return self.said("listing", text, ", ".join(pool[:n]), "I have to make a list.")

    def unknown(self):
        random = self.random
        topic = random.choice([phrase(random, 2), words.invented(random, True), f"the {random.choice(words.NOUNS)}"])
        text = random.choice([question(random, f"what do you think of {topic}"), question(random, f"what do you know about {topic}"),
                              ask(random, f"write an essay about {topic}"), question(random, f"why is there {topic}"),
                              ask(random, f"explain {topic}"), question(random, f"who invented {topic}"),
                              question(random, f"how does {topic} work"), ask(random, f"tell me about {topic}"),
                              question(random, f"what is {topic}"), question(random, f"where is {topic}")])
        return self.said("unknown", text, f"I am a small model and know nothing about {topic}.", f"I know nothing about {topic}.")

    def follow(self):
        random = self.random
        forms = [lambda: self.said("again", remark(random, random.choice(["again", "once more", "say that again", "repeat that",
                                                                        "can you repeat that", "what did you say"])),
                                   self.last_answer, "I say it again.", self.last_short, self.last)]
        if self.last_short:
            forms += [lambda: self.said("shorter", remark(random, random.choice(["shorter", "shorter, please", "in short", "make it shorter",
                                                                                "too long", "say it in fewer words"])),
                                        self.last_short, "A shorter answer is wanted.", self.last_short)] * 2
        if self.last:
            forms += [self._other] * 3
        return random.choice(forms)()

    def _other(self):
        """Asks the same of something else."""
        random, (kind, make) = self.random, self.last
        if kind == "place":
            subject = place(random)
            text = random.choice([f"And in {subject}?", f"What about {subject}?", f"And {subject}?", f"Now {subject}.", f"the same for {subject}"])
        else:
            subject = random.choice(random.choice([words.NAMES, words.NOUNS, words.ANIMALS]))
            text = random.choice([f"And {subject}?", f"What about {subject}?", f"Now {subject}.", f"and {subject}"])
        turn = make(subject)
        turn.messages[0]["content"] = text
        return turn

    # ---- tools ----

    def no_tool(self):
        random = self.random
        missing = [family for family in ("weather", "search") if not self.tool(family)]
        if not self.tool("shell"):
            missing.append("shell")
            if not any(self.tool(family) for family in ("write", "edit", "patch")):
                missing.append("file")
        known = [(tool.verb, tool.thing) for tool in self.tools]
        verb, thing = random.choice(words.VERBS[:28]), random.choice(words.OBJECTS)
        if (verb, thing) not in known:
            missing.append("generic")
        kind = random.choice(missing or ["none"])
        text = {"weather": lambda: self._weather_text(place(random)), "search": lambda: self._search_text(phrase(random)),
                "file": lambda: self._edit_text(file_name(random), phrase(random, 1), phrase(random, 1)),
                "shell": lambda: ask(random, f"run {self._command()}"),
                "generic": lambda: ask(random, f"{verb} {random.choice(['the', 'a'])} {thing}")}.get(kind)
        if text is None:
            return self.greet()
        return self.said("no tool", text(), NO_TOOL, "No tool fits.")

    def _weather_text(self, city):
        random = self.random
        return random.choice([question(random, f"what is the weather in {city}"), question(random, f"how is the weather in {city}"),
                              ask(random, f"check the weather in {city}"), question(random, f"is it raining in {city}"),
                              f"Weather in {city}?", ask(random, f"tell me the weather in {city}"), f"weather {city}"])

    def _sky(self):
        random = self.random
        degrees, sky = random.randint(-9, 39), random.choice(words.CONDITIONS)
        result = random.choice([json.dumps({"temperature": degrees, "condition": sky}), f"{degrees} degrees, {sky}",
                                json.dumps({"condition": sky, "temperature": degrees}), f"{sky}, {degrees} degrees",
                                f"{sky.capitalize()} and {degrees} C", json.dumps({"temp": degrees, "sky": sky})])
        return result, degrees, sky

    def weather(self, city=None):
        random, tool = self.random, self.tool("weather")
        cities = [city or place(random)]
        if not city and random.random() < 0.25:
            cities.append(place(random))
        if len(cities) == 2 and random.random() < 0.15:
            cities.append(place(random))
        results, sentences = [], []
        for name in cities:
            result, degrees, sky = self._sky()
            results.append(result)
            sentences.append(f"In {name} it is {sky.lower()} at {degrees} degrees.")
        joined = ", ".join(cities[:-1]) + " and " + cities[-1] if len(cities) > 1 else cities[0]
        return self.called("weather" if len(cities) == 1 else "parallel", self._weather_text(joined),
                           [tool.call(place=name) for name in cities], results, " ".join(sentences),
                           f"The user wants the weather in {joined}.", ("place", self.weather))

    def time(self, city=None):
        random, tool = self.random, self.tool("time")
        cities = [city or place(random)]
        if not city and random.random() < 0.2:
            cities.append(place(random))
        results, sentences = [], []
        for name in cities:
            clock = f"{random.randint(0, 23):02d}:{random.randint(0, 59):02d}"
            results.append(random.choice([clock, json.dumps({"time": clock}), f"It is {clock}.", json.dumps({"hour": clock, "ok": True})]))
            sentences.append(f"In {name} it is {clock}.")
        joined = " and ".join(cities)
        text = random.choice([question(random, f"what time is it in {joined}"), question(random, f"how late is it in {joined}"),
                              ask(random, f"tell me the time in {joined}"), f"Time in {joined}?"])
        return self.called("time" if len(cities) == 1 else "parallel", text, [tool.call(place=name) for name in cities],
                           results, " ".join(sentences), f"The user wants the time in {joined}.", ("place", self.time))

    def _search_text(self, query):
        random = self.random
        return random.choice([ask(random, f"search for {query}"), ask(random, f"look up {query}"), ask(random, f'search for "{query}"'),
                              ask(random, f"find pages about {query}"), f"Search: {query}"])

    def search(self):
        random, tool, query = self.random, self.tool("search"), phrase(self.random)
        result = random.choice([f"{query.capitalize()} is a {random.choice(words.ADJECTIVES)} {random.choice(words.NOUNS)}.",
                                f"{number(random)} results for {query}", upper_first(phrase(random, 6)) + ".", "nothing found"])
        return self.called("search", self._search_text(query), [tool.call(query=query)], [result], f"I found: {result}",
                           f"The user wants to search for {query}.")

    def calculate(self):
        random, tool = self.random, self.tool("calculate")
        a, b, sign = random.randint(2, 9999), random.randint(2, 999), random.choice("+-*")
        result = {"+": a + b, "-": a - b, "*": a * b}[sign]
        expression = f"{a} {sign} {b}"
        text = random.choice([question(random, f"what is {expression}"), ask(random, f"calculate {expression}"),
                              ask(random, f"compute {expression}"), f"{expression} = ?", question(random, f"how much is {expression}")])
        shown = random.choice([str(result), json.dumps({"result": result}), f"= {result}"])
        return self.called("calculator", text, [tool.call(expression=expression)], [shown], f"{expression} is {result}.",
                           f"I have to compute {expression}.")

    def generic(self):
        random = self.random
        tool = random.choice([tool for tool in self.tools if tool.family == "generic"])
        values = {}
        for key in tool.keys:
            kind = tool.schema["parameters"]["properties"][key]["type"]
            value = number(random, 3) if kind == "integer" else random.choice(
                [phrase(random, 1), phrase(random, 2), person(random), words.invented(random), place(random)])
            values[key] = int(value) if kind == "integer" else value
        pairs = [f"{key} {value}" for key, value in values.items()]
        article = random.choice(["the", "a"])
        form = random.random()
        command = f"{tool.verb} {article} {tool.thing}"
        if form < 0.25 or not pairs:
            command += "".join(f", {pair}" for pair in pairs)
        elif form < 0.75:
            command += " with " + " and ".join(pairs)
        elif form < 0.9:
            command += " (" + ", ".join(f"{key}: {value}" for key, value in values.items()) + ")"
        else:
            command = f"call {tool.name} with " + " and ".join(pairs)
        result, content = self._outcome("Done.")
        return self.called("generic", ask(random, command), [tool.call(**values)], [result], content,
                           f"The user wants to {tool.verb} the {tool.thing}.")

    def _outcome(self, good):
        """Returns the answer of a tool that does something, and the model's words on it."""
        random = self.random
        kind = random.random()
        if kind < 0.55:
            return random.choice(["ok", "done", "OK", '{"status": "ok"}', "success", "Done.", '{"ok": true}', "The tool is done.",
                                  f"{upper_first(phrase(random, 3))} updated.", "The file has been updated successfully.",
                                  json.dumps({"output": "", "metadata": {"exit_code": 0, "duration_seconds": 0.1}}),
                                  "\n".join(f"{i + 1}\t{phrase(random, 3)}" for i in range(random.randint(1, 3)))]), good
        if kind < 0.75:
            key = random.choice(["id", "number", "code", "reference"])
            value = random.choice([number(random), words.invented(random), f"{random.choice('ABCDEFGHK')}{random.randint(10, 999)}"])
            return json.dumps({"status": "ok", key: value}), f"{good} The {key} is {value}."
        if kind < 0.87:
            text = upper_first(phrase(random, 4))
            return f"result: {text}", f"{good} The result is: {text}"
        text = random.choice(["not found", "permission denied", "no such file", "timeout", phrase(random, 3)])
        return random.choice([f"error: {text}", f"Error: {text}", json.dumps({"error": text})]), f"That did not work: {text}"

    # ---- files ----

    def _edit_text(self, path, old, new):
        random = self.random
        quote = random.choice(["", "", '"', "'", "`"])
        old, new = f"{quote}{old}{quote}", f"{quote}{new}{quote}"
        by = random.choice(["by", "with"])
        return random.choice([ask(random, f"replace {old} {by} {new} in {path}"), ask(random, f"in {path} replace {old} {by} {new}"),
                              f"In {path} replace {old} {by} {new}.", f"In {path}, change {old} to {new}.",
                              ask(random, f"change {old} to {new} in {path}"), ask(random, f"edit {path}: replace {old} {by} {new}"),
                              ask(random, f"open {path} and replace {old} {by} {new}"), ask(random, f"edit {path} so that {old} becomes {new}")])

    def _path(self):
        self.file = file_name(self.random)
        return self.file

    def edit(self):
        random, path = self.random, self._path()
        old = random.choice([phrase(random, 1), phrase(random, 2), words.invented(random), number(random)])
        new = random.choice([phrase(random, 1), phrase(random, 2), words.invented(random), number(random)])
        text, note = self._edit_text(path, old, new), f"Replace {old} by {new} in {path}"
        thought, done = f"{old} has to become {new} in {path}.", f"Done. I replaced {old} by {new} in {path}."
        if tool := self.tool("edit"):
            call = tool.call(note, path=path, old=old, new=new)
        elif tool := self.tool("patch"):
            call = tool.call(patch=f"*** Begin Patch\n*** Update File: {path}\n@@\n-{old}\n+{new}\n*** End Patch")
        elif tool := self.tool("shell"):
            call = tool.call(note, command=f"sed -i 's/{old}/{new}/g' {path}")
        else:
            return self._rewrite(text, path, old, new, thought, done)
        result, content = self._outcome(done)
        if tool.family == "shell" and random.random() < 0.5:
            result, content = "", done
        return self.called("edit", text, [call], [result], content, thought)

    def _rewrite(self, text, path, old, new, thought, done):
        """Edits by reading a file and writing it anew."""
        random, read, write = self.random, self.tool("read"), self.tool("write")
        before, after = (phrase(random, 2) if random.random() < 0.7 else "" for _ in range(2))
        content = f"{before} {old} {after}".strip()
        result, answer = self._outcome(done)
        self.last_answer, self.last_short, self.last = answer, None, None
        messages = [{"role": "user", "content": text},
                    self.answer("", [read.call(path=path)], f"{thought} The tool {read.name} fits."),
                    {"role": "tool", "content": content},
                    self.answer("", [write.call(path=path, content=f"{before} {new} {after}".strip())], f"The tool {write.name} fits."),
                    {"role": "tool", "content": result}, self.answer(answer, (), "The tool has answered.")]
        return Turn(messages, ["read call", "rewrite call", "edit answer"])

    def write(self):
        random, path, content = self.random, self._path(), phrase(self.random, 5)
        quoted = random.choice([content, f'"{content}"', f"'{content}'"])
        text = random.choice([ask(random, f"write {quoted} to {path}"), ask(random, f"create {path} with the text {quoted}"),
                              ask(random, f"create the file {path} with the content {quoted}"), ask(random, f"save {quoted} in {path}"),
                              f"Write a file {path} that says {quoted}"])
        done = f"Done. I wrote {path}."
        if tool := self.tool("write"):
            call = tool.call(path=path, content=content)
        elif tool := self.tool("patch"):
            call = tool.call(patch=f"*** Begin Patch\n*** Add File: {path}\n+{content}\n*** End Patch")
        else:
            tool = self.tool("shell")
            call = tool.call(f"Write {path}", command=f"echo '{content}' > {path}")
        result, answer = self._outcome(done)
        return self.called("write", text, [call], [result], answer, f"The file {path} has to be written.")

    def read(self):
        random, path = self.random, self._path()
        if random.random() < 0.2 and self.last_answer and self.last_answer.startswith("Done. I wrote "):
            path = self.last_answer[len("Done. I wrote "):].split(". ")[0].rstrip(".")
        text = random.choice([ask(random, f"read {path}"), ask(random, f"show me {path}"), question(random, f"what is in {path}"),
                              ask(random, f"print {path}"), question(random, f"what does {path} say"), ask(random, f"open {path}")])
        lines = "\n".join(phrase(random, 4) for _ in range(random.randint(1, 3)))
        tool = self.tool("read")
        call = tool.call(path=path) if tool else self.tool("shell").call(f"Read {path}", command=f"cat {path}")
        if random.random() < 0.12:
            return self.called("read", text, [call], ["error: no such file"], "That did not work: no such file",
                               f"The user wants to see {path}.")
        return self.called("read", text, [call], [lines], f"{path} says:\n{lines}", f"The user wants to see {path}.")

    def list_files(self):
        random = self.random
        folder = random.choice(words.FOLDERS) if random.random() < 0.6 else words.invented(random)
        if random.random() < 0.25:
            text, folder = ask(random, random.choice(["list the files", "list all files", "list the files here"])), "."
        else:
            text = random.choice([ask(random, f"list the files in {folder}"), question(random, f"which files are in {folder}"),
                                  ask(random, f"show me the folder {folder}"), ask(random, f"list {folder}")])
        names = [file_name(random).split("/")[-1] for _ in range(random.randint(1, 4))]
        tool = self.tool("list")
        call = tool.call(folder=folder) if tool else self.tool("shell").call(f"List {folder}", command=f"ls {folder}")
        return self.called("list", text, [call], ["\n".join(names)], "The files are: " + ", ".join(names), "The user wants a list of files.")

    def _command(self):
        random = self.random
        return random.choice(["ls -l", "pwd", "make test", "make", "git status", "git log", f"cat {file_name(random)}", "date", "whoami",
                              f"python3 {random.choice(words.FILES)}.py", f"grep -n {phrase(random, 1)} {file_name(random)}",
                              f"mkdir {words.invented(random)}", f"wc -l {file_name(random)}", f"echo {phrase(random, 2)}",
                              f"rm {file_name(random)}", f"./{random.choice(words.FILES)}.sh", f"git commit -m {words.invented(random)}",
                              f"cp {file_name(random)} {words.invented(random)}", f"{words.invented(random)} --{random.choice(words.PROSE)}"])

    def run(self):
        random, tool, command = self.random, self.tool("shell"), self._command()
        quoted = f"`{command}`" if random.random() < 0.5 else command
        text = random.choice([ask(random, f"run {quoted}"), ask(random, f"execute {quoted}"), ask(random, f"run the command {quoted}"),
                              f"Run {quoted}", f"Use {tool.name} to run {quoted}"])
        output = "" if random.random() < 0.25 else "\n".join(phrase(random, 4) for _ in range(random.randint(1, 2)))
        if random.random() < 0.15:
            output = f"error: {phrase(random, 3)}"
        answer = "Done." if not output else f"That did not work: {output[7:]}" if output.startswith("error: ") else f"The output is:\n{output}"
        if output and random.random() < 0.2:
            output = json.dumps({"output": output, "metadata": {"exit_code": 0, "duration_seconds": 0.1}})
        return self.called("shell", text, [tool.call(f"Run {command}", command=command)], [output], answer, f"The user wants to run {command}.")

    # ---- choosing ----

    def _choices(self):
        """Returns {maker of a turn: weight}."""
        made = {self.greet: 3, self.about: 8, self.name_of_model: 1, self.small_talk: 6, self.count: 2, self.spell: 3, self.add: 4,
                self.tell: 6, self.recall: 7 if self.told else 1.5, self.repeat: 4, self.world: 3, self.listing: 1.5, self.unknown: 4}
        if self.last_answer:
            made[self.follow] = 4
        if not self.tools:
            made[self.no_tool] = 2
            return made
        made = {make: weight * 0.35 for make, weight in made.items()}
        made[self.no_tool] = 2
        have = {tool.family for tool in self.tools}
        for family, make in (("weather", self.weather), ("time", self.time), ("search", self.search), ("calculate", self.calculate)):
            if family in have:
                made[make] = 9
        if "generic" in have:
            made[self.generic] = 12
        if have & {"edit", "patch", "shell"} or have >= {"read", "write"}:
            made[self.edit] = 14
        if have & {"write", "patch", "shell"}:
            made[self.write] = 6
        if have & {"read", "shell"}:
            made[self.read] = 6
        if have & {"list", "shell"}:
            made[self.list_files] = 3
        if "shell" in have:
            made[self.run] = 6
        return made

    def next_turn(self, wanted=False, tries=200):
        """Makes a turn that is held out, or one that is not."""
        saved = dict(self.told), self.last, self.last_answer, self.last_short, self.file
        for _ in range(tries):
            choices = self._choices()
            turn = self.random.choices(list(choices), list(choices.values()))[0]()
            turn.said = turn.messages[0]["content"]
            if is_held_out(turn.said) == wanted:
                return self._surrounded(turn)
            self.told, self.last, self.last_answer, self.last_short, self.file = dict(saved[0]), *saved[1:]
        raise RuntimeError("no turn of this conversation is " + ("held out" if wanted else "trained on"))

    def _surrounded(self, turn):
        """Puts words around those of the user, as people and agents do."""
        random, message, form = self.random, turn.messages[0], self.random.random()
        tag = random.choice(["environment_context", "system-reminder", "context", words.invented(random)])
        if form < 0.04:
            block = f"<{tag}>\n{prose(random, random.randint(1, 3))}\n</{tag}>"
            turn.messages[0] = {**message, "content": f"{block}\n{random.choice(['', chr(10)])}{message['content']}"}
        elif form < 0.06:
            turn.messages.insert(0, {"role": "user", "content": f"<{tag}>\n{prose(random, random.randint(1, 3))}\n</{tag}>"})
        elif form < 0.11 and message["content"][-1] in ".!?":
            extra = random.choice(["Then tell me.", "Use a tool if you have one.", "Thank you.", "Be quick.", "Use the tools.",
                                   "Tell me when you are done.", "Do it now."])
            turn.messages[0] = {**message, "content": f"{message['content']} {extra}"}
        return turn

    def beginning(self):
        return system_parts(self.system, [tool.schema for tool in self.tools])


@dataclasses.dataclass
class Sample:
    """Token ids, which of them are learned, and the kind of each learned answer as (begin, end, kind)."""
    ids: list
    learned: list
    answers: list


def _append(sample, parts, kinds, tokenizer):
    kinds = iter(kinds)
    for text, learned in parts:
        ids = tokenizer.encode(text)
        if learned:
            sample.answers.append((len(sample.ids), len(sample.ids) + len(ids), next(kinds)))
        sample.ids += ids
        sample.learned += [learned] * len(ids)


def _turn_sample(turn, tokenizer):
    made = Sample([], [], [])
    _append(made, [part for message in turn.messages for part in message_parts(message)], turn.kinds, tokenizer)
    return made


def _join(sample, more):
    shift = len(sample.ids)
    sample.answers += [(begin + shift, end + shift, kind) for begin, end, kind in more.answers]
    sample.ids += more.ids
    sample.learned += more.learned


def make_sample(seed, length, tokenizer, held_out=False, kind=Conversation):
    """Returns a Sample of at most `length` tokens: a conversation of a kind, with as many turns as fit.

    With held_out it has up to three turns, and only the answers of the last one, which is held out, count."""
    for attempt in range(100):
        random = random_module.Random(f"{seed} {attempt} {held_out}")
        conversation = kind(random, length)
        sample = Sample([], [], [])
        _append(sample, conversation.beginning(), (), tokenizer)
        if held_out:
            for _ in range(random.randint(0, 2)):
                _join(sample, _turn_sample(conversation.next_turn(), tokenizer))
            try:
                turn = _turn_sample(conversation.next_turn(True), tokenizer)
            except RuntimeError:
                continue
            sample.answers.clear()
            sample.learned = [False] * len(sample.ids)
            _join(sample, turn)
            if len(sample.ids) <= length:
                return sample
            continue
        while True:
            turn = _turn_sample(conversation.next_turn(), tokenizer)
            if len(sample.ids) + len(turn.ids) > length:
                break
            _join(sample, turn)
        if sample.answers:
            return sample
    raise ValueError(f"no conversation of {length} tokens")


def conversation_text(seed, length=600, held_out=False, kind=Conversation):
    """Returns the text of a conversation, for the training of the tokenizer and to look at."""
    class Characters:
        """Counts four characters as a token."""
        def encode(self, text):
            return [text[i:i + 4] for i in range(0, len(text), 4)]
    return "".join(make_sample(seed, length, Characters(), held_out, kind).ids)


def print_some(description, kind):
    """Prints conversations of a kind, as the command line says."""
    parser = argparse.ArgumentParser(description=description.split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--length", type=int, default=600, help="tokens, as four characters each")
    parser.add_argument("--held-out", action="store_true")
    args = parser.parse_args()
    for seed in range(args.seed, args.seed + args.count):
        print(conversation_text(seed, args.length, args.held_out, kind))
        print("=" * 40)


if __name__ == "__main__":
    print_some(__doc__, Conversation)
