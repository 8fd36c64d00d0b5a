"""The Python client's asyncio twin against a fake server."""

import argparse
import asyncio
import inspect
import sys
import unittest

from client_test_util import WithServer, text_of

import grpc
from ovq_client import Chat, Client, Conversation, FinishReason, OvqError
from ovq_client.aio import AsyncChat, AsyncClient


class AsyncioTwin(WithServer, unittest.IsolatedAsyncioTestCase):
    async def test_calls(self):
        async with AsyncClient(self.server.address) as client:
            self.server.refusals = [20]
            events = [event async for event in client.generate("hello", max_tokens=3, seed=7)]
            self.assertEqual((events[0].seed, text_of(events)), (7, "5:h"))
            self.assertEqual(events[-1].reason, FinishReason.LENGTH)
            self.assertEqual(len((await client.score("abc")).logprobs), 2)
            self.assertEqual(await client.detokenize(await client.tokenize("äö")), "äö")
            self.assertEqual((await client.model_info([5])).state_sizes[0].position, 5)
            conversation = Conversation([("user", "Hi")])
            self.assertEqual(await client.apply_template(conversation), "[user]Hi")
            async with client.chat(keep_session=True) as chat:
                async def ask(text):
                    return text_of([event async for event in chat.send(text)])
                self.assertEqual(await ask("abc"), "3:abc")
                self.assertEqual(await ask("x" * 70000), "70008:xxxxxxxx")
                slow = chat.send("slow")
                events = [await anext(slow), await anext(slow)]
                await chat.cancel()
                events += [event async for event in slow]
                self.assertEqual(events[-1].reason, FinishReason.CANCELLED)
                session = chat.session
            self.assertEqual((await client.get_session(session.session_id)).busy, False)
            (copy,) = await client.fork_session(session.session_id)
            rewound = await client.rewind_session(copy.session_id, 2)
            self.assertEqual(rewound.session.position, 2)
            parts = [part async for part in client.export_session(copy.session_id)]
            self.assertEqual(b"".join(parts), b"session 2")

            async def file():
                for part in parts:
                    yield part

            made = await client.import_session(file())
            self.assertEqual(made.position, 2)
            await client.delete_session(copy.session_id)
            ids = [session.session_id async for session in client.list_sessions()]
            self.assertIn(made.session_id, ids)
            self.assertNotIn(copy.session_id, ids)
            with self.assertRaisesRegex(OvqError, "temperature") as caught:
                [event async for event in client.generate("bad")]
            self.assertEqual(caught.exception.code, grpc.StatusCode.INVALID_ARGUMENT)
            with self.assertRaisesRegex(OvqError, "no session"):
                async with client.chat(session_id="none"):
                    pass

    async def test_a_server_that_drains_behind_an_answer_is_no_error(self):
        async with AsyncClient(self.server.address) as client, client.chat() as chat:
            self.assertEqual(text_of([event async for event in chat.send("last")]), "4:last")

    async def test_a_cancel_may_come_while_a_turn_is_being_sent(self):
        async with AsyncClient(self.server.address) as client, client.chat() as chat:
            async def ask():
                return [event async for event in chat.send("slow")]

            for _ in range(5):
                turn = asyncio.ensure_future(ask())
                await asyncio.sleep(0)  # its message is on its way
                await asyncio.wait_for(chat.cancel(), 10)
                events = await asyncio.wait_for(turn, 10)
                self.assertEqual(events[-1].reason, FinishReason.CANCELLED)

    async def test_a_turn_after_the_end_of_the_call_says_why_it_ended(self):
        async with AsyncClient(self.server.address) as client:
            with self.assertRaisesRegex(OvqError, "draining") as caught:
                async with client.chat() as chat:
                    self.assertEqual(text_of([event async for event in chat.send("last")]), "4:last")
                    await chat._call.code()  # the end has arrived
                    [event async for event in chat.send("more")]
            self.assertEqual(caught.exception.code, grpc.StatusCode.UNAVAILABLE)
            async with client.chat() as chat:
                for text in ("cut", "more", "x" * 70000):
                    with self.assertRaisesRegex(OvqError, "shutting down"):
                        [event async for event in chat.send(text)]

    def test_it_has_the_methods_of_the_client_with_their_arguments(self):
        for blocking, twin in ((Client, AsyncClient), (Chat, AsyncChat)):
            names = {name for name in vars(blocking) if not name.startswith("_")}
            self.assertEqual(names, {name for name in vars(twin) if not name.startswith("_")})
            for name in names | ({"__init__"} if blocking is Client else set()):
                with self.subTest(f"{twin.__name__}.{name}"):
                    arguments, twins = (
                        [(each.name, each.kind, each.default)
                         for each in inspect.signature(getattr(cls, name)).parameters.values()]
                        for cls in (blocking, twin)
                    )
                    self.assertEqual(arguments, twins)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", help="not used: no program is built for this")
    _, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
