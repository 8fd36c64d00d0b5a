# %% [markdown]
# A tour of ovq-server from Python. Cells begin with `# %%`: Jupyter, VS Code and Spyder run them one
# by one, `python3 tour.py` runs all of them. It needs a running server, such as
# `ovq-server --model models/python-bytes`; OVQ_SERVER is its address if it is not 127.0.0.1:50051.

# %% The served model
import asyncio
import os

from ovq_client import Client, Finished, Options, OvqError, TokenChunk
from ovq_client.aio import AsyncClient

SERVER = os.environ.get("OVQ_SERVER") or "127.0.0.1:50051"
client = Client(SERVER)
info = client.model_info(positions=[1_000, 100_000, 1_000_000])
print(info.name, f"{info.parameters / 1e6:.1f}M parameters, {', '.join(info.layer_types)}")

# %% Bounded memory: a session compared with a full key/value cache
for size in info.state_sizes:
    print(f"{size.position:>9,} tokens: {size.state_bytes / 1e6:5.1f} MB,"
          f" full cache {size.full_kv_cache_bytes / 1e6:7.1f} MB")

# %% A streamed answer
PROMPT = 'class TimeoutError(OSError):\n    """'
OPTIONS: Options = {"max_tokens": 120, "temperature": 0.8, "top_p": 0.9, "seed": 1}
print(PROMPT, end="")
for event in client.generate(PROMPT, **OPTIONS):
    if isinstance(event, TokenChunk):
        print(event.text, end="", flush=True)
    elif isinstance(event, Finished):
        print(f"\n[{event.reason.name}, {event.usage.generated_tokens} tokens]")

# %% A conversation: its state stays on the server between the turns
with client.chat() as chat:
    for question in ("import os\n", "import sys\n"):
        answer = "".join(e.text for e in chat.send(question, max_tokens=20, temperature=0.8)
                         if isinstance(e, TokenChunk))
        print(repr(question), "->", repr(answer))

# %% A session that is kept, copied and rewound
session = client.create_session("import os\n", ttl=600)
(copy,) = client.fork_session(session.session_id)
for _ in client.generate("import re\n", session_id=copy.session_id, max_tokens=10):
    pass
print("original at", client.get_session(session.session_id).position,
      "copy at", client.get_session(copy.session_id).position)
print("back at", client.rewind_session(copy.session_id, session.position).session.position)
for one in (session, copy):
    client.delete_session(one.session_id)

# %% How likely is a text?
score = client.score("def close(self):\n    self.file.close()\n")
print(f"{-sum(score.logprobs) / len(score.logprobs):.3f} nats a token")

# %% Errors say what was expected
try:
    list(client.generate("x", temperature=1000))
except OvqError as error:
    print(error.code.name, "-", error.message)

# %% Many at once, with asyncio
async def many():
    async with AsyncClient(SERVER) as twin:
        async def tokens(seed):
            return sum([len(e.token_ids) async for e in twin.generate("import ", max_tokens=20, seed=seed)
                        if isinstance(e, TokenChunk)])
        return await asyncio.gather(*(tokens(seed) for seed in range(4)))


print("tokens of four answers:", asyncio.run(many()))
client.close()
