"""The Python client against a fake server."""

from __future__ import annotations

import argparse
import datetime
import enum
import os
import socket
import sys
import tempfile
import threading
import time
import typing
import unittest
import unittest.mock
import uuid
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path

from client_test_util import ROOT, WithServer, proto, run_python_client, text_of

import grpc
import ovq_client
import raw_http2
from ovq_client import (
    JSON_OBJECT, Choice, Client, Conversation, Finished, FinishReason, Grammar, OvqError, Regex,
    Speculation, Started, UnfinishedAnswer, json_schema, session_file,
)
from ovq_client import aio
from ovq_client._messages import REQUESTS
from ovq_client._requests import duration
from ovq_client.constraint import parse_answer


class Color(enum.Enum):
    RED = "r"
    GREEN = "g"


@dataclass
class Member:
    age: int
    friends: typing.List[Member] = field(default_factory=list)


@dataclass
class Team:
    name: str
    members: typing.List[Member]
    founded: datetime.date
    color: Color
    size: typing.Literal["s", "l"]
    place: typing.Tuple[float, float]
    lead: typing.Optional[Member] = None
    notes: typing.Dict[str, int] = field(default_factory=dict)


class PythonClient(WithServer):
    def setUp(self):
        super().setUp()
        self.client = Client(self.server.address)
        self.addCleanup(self.client.close)

    def test_generate(self):
        events = list(self.client.generate("hello", max_tokens=3, temperature=0, seed=7))
        self.assertEqual(events[0].seed, 7)
        self.assertIsInstance(events[0], Started)
        self.assertEqual(text_of(events), "5:h")
        self.assertIsInstance(events[-1], Finished)
        self.assertEqual(events[-1].reason, FinishReason.LENGTH)
        self.assertEqual((events[-1].usage.position, events[-1].usage.prefill_time), (8, 0.01))
        self.assertEqual((events[-1].usage.queue_time, events[-1].matched_token_id), (None, None))
        request = self.server.requests[0]
        self.assertTrue(request.sampling.HasField("temperature"))
        self.assertFalse(request.HasField("output"))

    def test_generate_from_ids_on_a_session(self):
        session = self.client.create_session("abc", memory="paper", max_centroids=32, ttl=60)
        self.assertEqual((session.position, session.memory, session.max_centroids), (3, "paper", 32))
        self.assertEqual(session.expires.timestamp(), 1060)
        events = list(self.client.generate([100, 101], session_id=session.session_id))
        self.assertEqual(text_of(events), "5:de")
        self.assertEqual(self.client.get_session(session.session_id).position, 9)
        key = session.session_id.partition(".")[0]
        self.assertRegex(key, r"^[0-9a-f]{32}$")  # the server has received it with every call
        self.assertNotEqual(self.client.create_session().session_id.partition(".")[0], key)

    def test_conversations(self):
        conversation = Conversation([("user", "Hi"), ("assistant", "yo"), ("user", "Bye")], known=2)
        self.assertEqual(text_of(self.client.generate(conversation)), "9:user]Bye")
        with self.client.chat() as chat:
            self.assertEqual(text_of(chat.send(conversation)), "9:user]Bye")
        self.assertEqual(self.client.apply_template(conversation), "[user]Bye")
        sent = Conversation([("user", "Hi")], tools_json="[]", add_generation_prompt=False)
        list(self.client.generate(sent))
        request = self.server.requests[-1].prompt.conversation
        self.assertEqual((request.tools_json, request.add_generation_prompt), ("[]", False))

    def test_constraints(self):
        constraints = {
            '{"type": "integer"}': {"type": "integer"},
            "a+": Regex("a+"),
            "root ::= 'x'": Grammar("root ::= 'x'"),
        }
        for sent, constraint in constraints.items():
            list(self.client.generate("x", constraint=constraint, temperature=0))
            message = self.server.requests[-1].sampling.constraint
            self.assertEqual(getattr(message, message.WhichOneof("kind")), sent)
        list(self.client.generate("x", constraint=Choice(["a", "b"])))
        self.assertEqual(list(self.server.requests[-1].sampling.constraint.choice.texts), ["a", "b"])
        list(self.client.generate("x", constraint=JSON_OBJECT))
        self.assertTrue(self.server.requests[-1].sampling.constraint.json_object)
        self.assertEqual(self.client.generate_as(Regex(".*"), "abc"), "3:abc")
        with self.assertRaises(UnfinishedAnswer) as raised:
            self.client.generate_as(Regex(".*"), "abc", max_tokens=1)
        self.assertEqual(raised.exception.text, "3")
        with self.assertRaisesRegex(TypeError, "sequence of str"):
            list(self.client.generate("x", constraint=Choice("ab")))
        with self.assertRaisesRegex(TypeError, "no JSON schema for"):
            list(self.client.generate("x", constraint=complex))

    def test_a_dataclass_is_a_schema(self):
        schema = json_schema(Team)
        self.assertEqual(schema["$ref"], "#/$defs/Team")
        self.assertEqual(schema["$defs"]["Team"], {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "members": {"type": "array", "items": {"$ref": "#/$defs/Member"}},
                "lead": {"anyOf": [{"$ref": "#/$defs/Member"}, {"type": "null"}]},
                "founded": {"type": "string", "format": "date"},
                "color": {"enum": ["r", "g"]},
                "size": {"enum": ["s", "l"]},
                "place": {"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}],
                          "minItems": 2, "maxItems": 2},
                "notes": {"type": "object", "additionalProperties": {"type": "integer"}},
            },
            "required": ["name", "members", "founded", "color", "size", "place"],
            "additionalProperties": False,
        })
        self.assertEqual(schema["$defs"]["Member"]["properties"]["friends"],
                         {"type": "array", "items": {"$ref": "#/$defs/Member"}})
        text = ('{"name": "T", "members": [{"age": 3, "friends": [{"age": 1}]}], "founded": "2024-02-29",'
                ' "color": "g", "size": "s", "place": [1, 2.5], "notes": {"a": 1}, "lead": {"age": 9}}')
        self.assertEqual(parse_answer(Team, text), Team(
            "T", [Member(3, [Member(1)])], datetime.date(2024, 2, 29), Color.GREEN, "s", (1.0, 2.5),
            Member(9), {"a": 1}))
        self.assertEqual(parse_answer({}, "[1]"), [1])

    def test_an_answer_of_a_union_is_of_the_type_that_it_fits(self):
        texts, pair, date = typing.List[str], typing.Tuple[str, str], datetime.date
        for kinds, text, value in (
            ((texts, str), '"ab"', "ab"), ((pair, str), '"ab"', "ab"), ((list, dict), '{"a": 1}', {"a": 1}),
            ((texts, typing.Dict[str, int]), '{"a": 1}', {"a": 1}),
            ((pair, texts), '["a", "b", "c"]', ["a", "b", "c"]),
            ((typing.Literal["none"], date), '"2024-02-29"', date(2024, 2, 29)),
        ):
            built = parse_answer(typing.Union[kinds], text)
            self.assertEqual((type(built), built), (type(value), value))

    def test_fractions_of_seconds_have_any_number_of_digits(self):
        utc = datetime.timezone.utc
        for digits, microseconds in (("1", 100000), ("1234", 123400), ("123456", 123456), ("123456789", 123456)):
            self.assertEqual(parse_answer(datetime.time, f'"12:34:56.{digits}Z"'),
                             datetime.time(12, 34, 56, microseconds, utc))
            self.assertEqual(parse_answer(datetime.datetime, f'"2024-02-29T12:34:56.{digits}+00:00"'),
                             datetime.datetime(2024, 2, 29, 12, 34, 56, microseconds, utc))

    def test_members_of_an_enum_are_found_by_their_json(self):
        kind = enum.Enum("Kind", {"ONE": 1, "PAIR": (1, 2), "LIST": [1], "OBJECT": {"a": [1]}})
        for text, member in (("1", kind.ONE), ("[1, 2]", kind.PAIR), ("[1]", kind.LIST), ('{"a": [1]}', kind.OBJECT)):
            self.assertIs(parse_answer(kind, text), member)
        for text in ("true", "[true]", '{"a": [true]}', "[1, true]", "[1, 2, 3]", '{"a": [1], "b": 1}', '"1"'):
            with self.assertRaises(ValueError, msg=text):
                parse_answer(kind, text)

    def test_an_answer_of_no_such_value_is_a_value_error(self):
        for kind, text in (
            (Member, "{}"), (Member, '{"age": 1, "name": "x"}'), (Member, '{"age": true}'),
            (datetime.date, "5"), (datetime.datetime, "null"), (uuid.UUID, "[]"), (float, "1" * 400),
            (Color, "3"), (enum.Enum("Bit", {"ONE": 1}), "true"), (typing.Literal[1], "true"),
            (typing.Union[int, Member], "{}"), (int, "{"), (float, "-1e400"), (float, "NaN"),
            (typing.Any, "[Infinity]"), ({"type": "number"}, "-Infinity"), (typing.List[int], "[" * 9999 + "]" * 9999),
            (list, "[-Infinity]"), (JSON_OBJECT, "[]"),
        ):
            with self.assertRaises(ValueError, msg=(kind, text)):
                parse_answer(kind, text)

    def test_classes_of_one_name_have_schemas_of_their_own(self):
        def item(kind):
            return make_dataclass("Item", [("value", kind)])

        one, other = item(int), item(str)
        schema = json_schema(make_dataclass("Item", [("one", one), ("other", other), ("again", one)]))
        fields = schema["$defs"]["Item"]["properties"]
        self.assertEqual(fields["one"], fields["again"])
        kinds = [schema["$defs"][fields[name]["$ref"].rpartition("/")[2]]["properties"]["value"]["type"]
                 for name in ("one", "other")]
        self.assertEqual(kinds, ["integer", "string"])

    def test_closing_the_iterator_cancels_the_call(self):
        events = self.client.generate("slow")
        next(events)
        next(events)
        events.close()
        self.assertEqual(text_of(self.client.generate("abc")), "3:abc")

    def test_unknown_option(self):
        with self.assertRaisesRegex(TypeError, "temprature"):
            next(self.client.generate("x", temprature=1))

    def test_chat(self):
        with self.client.chat(keep_session=True) as chat:
            self.assertEqual(text_of(chat.send("abc", top_k=3)), "3:abc")
            self.assertEqual(text_of(chat.send("def")), "11:def")
        self.assertEqual(self.server.turns[0].sampling.top_k, 3)
        self.assertFalse(self.server.turns[1].HasField("sampling"))
        with self.client.chat(session_id=chat.session.session_id) as again:
            self.assertEqual(again.session.position, 17)
        with self.client.chat(keep_tokens=True):
            self.assertTrue(self.server.opens[-1].keep_tokens)

    def test_chat_cancel(self):
        with self.client.chat() as chat:
            events = chat.send("slow")
            self.assertIsInstance(next(events), Started)
            with self.assertRaises(RuntimeError):
                chat.send("too early")
            chat.cancel()
            self.assertEqual(list(events)[-1].reason, FinishReason.CANCELLED)
            self.assertEqual(text_of(chat.send("abc")), "8:abc")

    def test_chat_big_prompts_go_in_parts(self):
        with self.client.chat() as chat:
            self.assertEqual(text_of(chat.send("€" * 50000)), "150000:" + "€" * 8)
            self.assertEqual("".join(t.prompt.text for t in self.server.turns), "€" * 50000)
            self.server.turns.clear()
            list(chat.send([65] * 40000))
            self.assertEqual(
                [len(t.prompt.token_ids.ids) for t in self.server.turns], [16384, 16384, 7232]
            )

    def test_a_cancel_between_two_parts_of_a_turn_is_not_lost(self):
        with self.client.chat() as chat:
            read = chat._chat._read

            async def read_then_cancel():
                response = await read()
                if response.WhichOneof("event") == "absorbed":
                    chat.cancel()
                return response

            chat._chat._read = read_then_cancel
            (end,) = chat.send("€" * 50000)
            self.assertEqual((end.reason, end.usage.position), (FinishReason.CANCELLED, 65535))
            self.assertEqual(len(self.server.turns), 1)
            self.assertEqual(text_of(chat.send("abc")), "65538:abc")

    def test_durations_are_valid_messages(self):
        for seconds, sent in ((0.25, (0, 250_000_000)), (1.9999999999, (2, 0)), (3, (3, 0)),
                              (-0.5, (0, -500_000_000)), (-1.5, (-1, -500_000_000))):
            self.assertEqual(tuple(duration(seconds).values()), sent)
        self.assertIsNone(duration(None))

    def test_errors(self):
        with self.assertRaises(OvqError) as caught:
            list(self.client.generate("bad"))
        self.assertEqual(caught.exception.code, grpc.StatusCode.INVALID_ARGUMENT)
        self.assertEqual(caught.exception.message, "temperature: expected [0, 100]")
        self.assertIsNone(caught.exception.info)
        with self.assertRaises(OvqError) as caught:
            self.client.get_session("none")
        self.assertEqual(caught.exception.code, grpc.StatusCode.NOT_FOUND)
        with self.assertRaises(OvqError):
            with self.client.chat() as chat:
                list(chat.send("bad"))
        with self.assertRaises(OvqError) as caught:
            list(self.client.generate("slow", timeout=0.2))
        self.assertEqual(caught.exception.code, grpc.StatusCode.DEADLINE_EXCEEDED)

    def test_unary_calls(self):
        score = self.client.score("abc", top_logprobs=2)
        self.assertEqual((score.token_ids, score.logprobs), ((97, 98, 99), (-0.5, -0.5)))
        self.assertEqual([len(top.token_ids) for top in score.top], [2, 2, 2])
        self.assertEqual(self.client.tokenize("ab", add_bos=True), [256, 97, 98])
        self.assertEqual(self.client.detokenize([104, 105]), "hi")
        info = self.client.model_info([10, 20])
        self.assertEqual((info.name, info.layer_types), ("fake", ("ovq_attention",)))
        self.assertEqual([size.full_kv_cache_bytes for size in info.state_sizes], [1000, 2000])
        self.assertIsNone(info.bos_token_id)

    def test_sessions(self):
        made = [self.client.create_session().session_id for _ in range(5)]
        listed = [session.session_id for session in self.client.list_sessions(page_size=2)]
        self.assertEqual(listed, sorted(made))
        first, second = self.client.fork_session(made[0], 2, ttl=60)
        self.assertEqual(len({first.session_id, second.session_id, *made}), 7)
        plan = self.client.rewind_session(second.session_id, 0, dry_run=True)
        self.assertEqual((plan.session.session_id, plan.replay_tokens), (second.session_id, 0))
        moved = self.client.import_session(self.client.export_session(second.session_id), ttl=9)
        self.assertEqual(moved.position, second.position)
        with self.assertRaises(OvqError):
            self.client.import_session([b"x" * (3 << 20)])
        self.client.delete_session(moved.session_id)
        for copy in (first, second):
            self.client.delete_session(copy.session_id)
        self.client.delete_session(made[0])
        self.assertEqual(len(list(self.client.list_sessions())), 4)

    def test_options_and_enums_are_those_of_the_proto(self):
        descriptor = proto()[0].DESCRIPTOR
        messages = ("SamplingParams", "StopConditions", "OutputOptions")
        fields = [field for name in messages
                  for field in descriptor.message_types_by_name[name].fields_by_name]
        self.assertEqual(list(ovq_client.Options.__annotations__), fields)
        for enum, prefix in ((FinishReason, "FINISH_REASON_"), (Speculation, "SPECULATION_")):
            values = descriptor.enum_types_by_name[enum.__name__].values
            self.assertEqual({prefix + each.name: each.value for each in enum},
                             {each.name: each.number for each in values})

    def test_command_line_forms(self):
        def generate(*arguments):
            return run_python_client("--server", self.server.address, "generate", "--text", "x", *arguments)

        with tempfile.TemporaryDirectory() as folder:
            schema, grammar, broken = (os.path.join(folder, name) for name in ("s.json", "g.gbnf", "b.json"))
            Path(schema).write_text('{"type": "integer"}')
            Path(grammar).write_text('root ::= "x"')
            Path(broken).write_text('{"type":')
            for kind, flag, value, sent in (("json_schema", "--json-schema", schema, '{"type": "integer"}'),
                                            ("grammar", "--grammar", grammar, 'root ::= "x"'),
                                            ("regex", "--regex", "a+", "a+")):
                done = generate(flag, value)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(getattr(self.server.requests[-1].sampling.constraint, kind), sent)
            sent = len(self.server.requests)
            for arguments, named in ((("--json-schema", broken), "b.json: expected JSON"),
                                     (("--grammar", folder + "/none"), "none"),
                                     (("--regex", "a", "--grammar", grammar), "not allowed with")):
                refused = generate(*arguments)
                self.assertEqual(refused.returncode, 2)
                self.assertIn(named, refused.stderr)
            self.assertEqual(len(self.server.requests), sent)

    def test_command_line(self):
        def run(*arguments):
            return run_python_client("--server", self.server.address, *arguments)

        generated = run("generate", "--text", "hello", "--max-tokens", "3", "--top-p", "0.5")
        self.assertEqual(generated.stdout, "5:h", generated.stderr)
        self.assertIn("perplexity         1.6487", run("score", "--text", "abc").stdout)
        self.assertIn("state at 5", run("info", "--position", "5").stdout)
        message = run("generate", "--text", "Hi", "--system", "S")
        self.assertEqual(message.stdout, "17:[user]Hi", message.stderr)
        session_id = run("sessions", "--create").stdout.strip()
        self.assertIn(session_id, run("sessions").stdout)
        copies = run("sessions", "--fork", session_id, "--count", "3").stdout.split()
        self.assertEqual(len(copies), 3)
        self.assertIn(copies[2], run("sessions").stdout)
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "file")
            export = ("sessions", "--export", session_id, file)
            earlier = ROOT / "tests" / "golden" / "session" / "small.ovqs"
            self.assertEqual(run(*export, "--since", str(earlier)).returncode, 0)
            digest = session_file.read(earlier).base.digest
            self.assertEqual(Path(file).read_bytes(), b"since 7 " + digest)
            self.assertIn("--since goes with --export", run("sessions", "--since", file).stderr)
        self.assertEqual(run("sessions", "--delete", session_id).returncode, 0)
        failed = run("generate", "--text", "bad")
        self.assertEqual(failed.returncode, 1)
        self.assertIn("INVALID_ARGUMENT: temperature", failed.stderr)

    def test_command_line_refuses_numbers_that_no_message_holds(self):
        for arguments, said in (
            (("generate", "--top-k=-1"), "--top-k: expected a whole number from 0 to 4294967295, got '-1'"),
            (("generate", "--seed=18446744073709551616"), "--seed: expected a whole number from 0 to 1844"),
            (("sessions", "--create", "--max-centroids=x"), "--max-centroids: expected a whole number"),
            (("sessions", "--create", "--ttl=nan"), "--ttl: expected seconds from 0 to 315576000000, got 'nan'"),
            (("sessions", "--rewind=a", "--position=-1"), "--position: expected a whole number"),
        ):
            refused = run_python_client("--server", self.server.address, *arguments)
            self.assertEqual(refused.returncode, 2, refused.stderr)
            self.assertIn(said, refused.stderr)

    def test_command_line_takes_texts_byte_for_byte(self):
        def generate(*arguments, **more):
            return run_python_client("--server", self.server.address, "generate", *arguments, **more)

        text = "a\r\nä\r"
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "text")
            Path(file).write_bytes(text.encode())
            for done in (generate("--file", file), generate(stdin=text, PYTHONIOENCODING="latin-1")):
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(self.server.requests.pop().prompt.text, text)
        latin = "caf\udce9"  # the byte E9, as Python has it in arguments
        for refused in (generate(stdin=latin, LC_ALL="C"), generate("--text", latin)):
            self.assertEqual(refused.returncode, 1)
            self.assertRegex(refused.stderr, r"^ovq_client: 'utf-8' codec can't (de|en)code")
        self.assertEqual(self.server.requests, [])
        shown = generate("--text", "ä", PYTHONIOENCODING="ascii")
        self.assertEqual((shown.returncode, shown.stdout), (0, "2:?"), shown.stderr)

    def test_the_error_of_an_answer_that_is_cut_off_begins_a_line(self):
        cut = run_python_client("--server", self.server.address, "generate", "--text", "cut")
        self.assertEqual((cut.returncode, cut.stdout), (1, "3"))
        self.assertRegex(cut.stderr, r"^\[seed 42\]\n\novq_client: UNAVAILABLE: the server is shutting down")
        bad = run_python_client("--server", self.server.address, "generate", "--text", "bad")
        self.assertRegex(bad.stderr, "^ovq_client: INVALID_ARGUMENT")

    def test_an_export_that_fails_leaves_no_file(self):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "file")
            failed = run_python_client("--server", self.server.address, "sessions", "--export", "none", file)
            self.assertEqual(failed.returncode, 1)
            self.assertIn("NOT_FOUND", failed.stderr)
            self.assertEqual(os.listdir(folder), [])

    def test_texts_are_no_sequences(self):
        for call in (
            lambda: self.client.generate("a", stop_strings="abc"),
            lambda: self.client.generate("a", stop_strings=[b"abc"]),
            lambda: self.client.generate("a", stop_token_ids="12"),
            lambda: self.client.generate(b"abc"),
            lambda: self.client.tokenize(["abc"]),
            lambda: self.client.generate(Conversation([("user", ["Hi"])])),
        ):
            with self.assertRaisesRegex(TypeError, "expected a (sequence|str)"):
                call()
        self.assertEqual(self.server.requests, [])

    def test_calls_that_are_refused_for_a_time_are_sent_again(self):
        self.server.refusals = [50, 50, 50, 50]
        begin = time.monotonic()
        with self.assertRaises(OvqError) as caught:
            self.client.score("abc")  # refused three times
        self.assertEqual(caught.exception.info.retry_after, 0.05)
        self.assertGreaterEqual(time.monotonic() - begin, 0.15)
        self.server.refusals = [100, 100]
        begin = time.monotonic()
        self.assertEqual(text_of(self.client.generate("abc")), "3:abc")
        self.assertGreaterEqual(time.monotonic() - begin, 0.2)
        # No retry if it would exceed the call's time, or if retries are disabled.
        self.server.refusals = [60000]
        with self.assertRaises(OvqError):
            list(self.client.generate("abc", timeout=5))
        with Client(self.server.address, retries=0) as impatient:
            self.server.refusals = [10]
            with self.assertRaises(OvqError):
                impatient.score("abc")

    def test_a_server_that_drains_behind_an_answer_is_no_error(self):
        with self.client.chat() as chat:
            self.assertEqual(text_of(chat.send("last")), "4:last")
        with self.assertRaisesRegex(OvqError, "draining"):
            with self.client.chat() as chat:
                list(chat.send("last"))
                list(chat.send("more"))

    def test_turns_after_an_answer_that_was_cut_off_say_why(self):
        with self.client.chat() as chat:
            for text in ("cut", "more", "x" * 70000):
                with self.assertRaisesRegex(OvqError, "shutting down"):
                    list(chat.send(text))


class Pings(unittest.TestCase):
    """A server that answers pings and nothing else."""

    def serve(self, listener):
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as received:
            received.read(len(raw_http2.PREFACE))
            connection.sendall(raw_http2.settings())
            while len(head := received.read(9)) == 9:
                payload = received.read(int.from_bytes(head[:3], "big"))
                kind, flags = head[3], head[4]
                if kind in (raw_http2.SETTINGS, raw_http2.PING) and not flags:
                    connection.sendall(raw_http2.frame(kind, raw_http2.ACK, 0, payload[:8 * (kind == raw_http2.PING)]))
                if kind == raw_http2.PING and not flags:
                    self.pings.release()

    def test_they_go_on_while_a_call_waits(self):
        """Without them a server that has vanished would keep the caller for ever."""
        self.pings = threading.Semaphore(0)
        often = [(name, 100 if name == "grpc.keepalive_time_ms" else value) for name, value in aio._CHANNEL_OPTIONS]
        with socket.create_server(("127.0.0.1", 0)) as listener, unittest.mock.patch.object(
                aio, "_CHANNEL_OPTIONS", often):
            server = threading.Thread(target=self.serve, args=[listener])
            server.start()
            with Client(f"127.0.0.1:{listener.getsockname()[1]}") as client:
                call = client._stub.Generate(REQUESTS["Generate"]())
                for i in range(5):  # gRPC sends at most one a second
                    self.assertTrue(self.pings.acquire(timeout=10), f"ping {i}")
                call.cancel()
            server.join(10)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", help="not used: no program is built for this")
    _, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
