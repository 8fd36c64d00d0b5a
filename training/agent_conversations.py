"""Scripted conversations of the shape that coding agents have: the prompt fills most of the length.

The turns are those of conversations.py, with more commands for a shell. Run this file to print some."""

from chat import commands, manuals
from chat.render import message_parts
from conversations import Conversation, ask, print_some


class AgentConversation(Conversation):
    """A conversation whose manual, tools and surroundings take the share `prompt` of its room."""

    def __init__(self, random, room):
        self.prompt = random.uniform(0.75, 0.9) if room >= 8192 else random.uniform(0.35, 0.8)
        self.around = []  # messages between the system's and the user's first
        super().__init__(random, room)
        self.thinks = self.thinks and random.random() < 0.5
        self._draw_surroundings(room)

    # ---- the beginning ----

    def _has_tools(self, room):
        return True

    def _draw_tools(self, room):
        self.tools = manuals.agent_tools(self.random, int(room * self.prompt * self.random.uniform(0.3, 0.7)))

    def _left(self, room):
        """Returns how many tokens of the prompt there are left for."""
        spent = sum(len(text) for text, _ in self.beginning()) / manuals.CHARACTERS_PER_TOKEN
        return max(0, int(room * self.prompt - spent))

    def _draw_system(self, room):
        self.system = ""
        intro = self.random.choice(["You are a coding agent.", "You are an agent in a terminal.", "You help with software.", ""])
        names = [tool.name for tool in self.tools]
        share = self.random.uniform(0.5, 1) if room > 600 else 1
        return f"{intro}\n{manuals.manual(self.random, self._left(room) * share, names)}".strip()

    def _draw_surroundings(self, room):
        random, names = self.random, [tool.name for tool in self.tools]
        left = self._left(room)
        if left < 60:
            return
        if random.random() < 0.4:
            text = manuals.reminder(random, left * random.random(), names)
            self.around.append({"role": "system", "content": text})
        if random.random() < 0.5:
            self.around.append({"role": "user", "content": manuals.surroundings(random)})
        n = random.choice([0, 1, 1, 2])
        for _ in range(n):
            self.around.append({"role": "user", "content": manuals.reminder(random, self._left(room) / n, names)})

    def beginning(self):
        return [*super().beginning(), *(part for message in self.around for part in message_parts(message))]

    # ---- turns ----

    def _choices(self):
        made = {make: weight * 0.4 for make, weight in super()._choices().items()}
        if self.tool("shell"):
            made[self.run] = 14
        if self.tool("generic"):
            made[self.generic] = 12  # a tool that was not called before has to be found far away
        return made

    def _command(self):
        return commands.command(self.random)

    def run(self):
        random, tool, command = self.random, self.tool("shell"), self._command()
        form = random.random()
        if form < 0.7:
            quoted = f"`{command}`"
            text = random.choice([f"Run {quoted}", f"Run {quoted}", ask(random, f"run {quoted}"), ask(random, f"execute {quoted}"),
                                  ask(random, f"run the command {quoted}"), f"Use {tool.name} to run {quoted}",
                                  f"Run {quoted} and tell me the output.", f"Run {quoted} in the shell.", f"$ {command}"])
        elif form < 0.92:
            text = random.choice([f"Run {command}", f"run {command}", f"Run: {command}", f"Execute {command}",
                                  f"Run this command: {command}", f"Run the following command:\n{command}"])
        else:
            text = f"Run this:\n```{random.choice(['', 'bash', 'sh'])}\n{command}\n```"
        printed, failed = commands.output(random), False
        if printed and random.random() < 0.15:
            printed, failed = f"error: {printed}", True
        answer = f"That did not work: {printed[7:]}" if failed else f"The output is:\n{printed}" if printed else "Done."
        return self.called("shell", text, [tool.call(f"Run {command}", command=command)],
                           [commands.wrapped(random, command, printed, failed)], answer, f"The user wants to run {command}.")

    def _surrounded(self, turn):
        """Puts an agent's words around those of the user."""
        random, said = self.random, turn.messages[0]["content"]
        if random.random() < 0.12 and '"' not in said:
            said = f'"{said}"'
        left = 400 if self.around and random.random() < 0.3 else 30
        form = random.random()
        names = [tool.name for tool in self.tools]
        if form < 0.15:
            said = manuals.reminder(random, random.random() * left, names) + random.choice(["", "\n", "\n\n"]) + said
        elif form < 0.19:
            said += "\n\n" + manuals.reminder(random, 30, names)
        elif form < 0.23:
            said = manuals.surroundings(random) + random.choice(["", "\n", "\n\n"]) + said
        turn.messages[0] = {**turn.messages[0], "content": said}
        return turn


if __name__ == "__main__":
    print_some(__doc__, AgentConversation)
