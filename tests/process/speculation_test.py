"""The shipped model with and without speculation: the answers are the same, in fewer batches.

usage: speculation_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import concurrent.futures
import os
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(ROOT, "clients", "python")]

try:
    from ovq_client import Client, Finished, OvqError, Speculation, TokenChunk
except ImportError as error:
    print(f"SKIPPED: {error}; install python3-grpcio, python3-protobuf and protobuf-compiler")
    sys.exit(0)

from server_process import ServerProcess, run_to_end

MODEL = os.path.join(ROOT, "models", "python-bytes")
BIN = None
PROMPT = "".join(f"    def get_{name}(self):\n        return self._{name}\n\n"
                 for name in ("width", "height", "depth", "color", "weight", "name"))
SAMPLINGS = [
    {"temperature": 0},
    {"temperature": 0.7, "seed": 3},
    {"temperature": 0.9, "seed": 4, "top_p": 0.9, "repetition_penalty": 1.1,
     "frequency_penalty": 0.1},
    {"temperature": 0.5, "seed": 5, "stop_strings": ["self._z", "\n\n\n"], "logit_bias": {32: 1.5}},
]


class Speculating(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = ServerProcess(os.path.join(BIN, "ovq-server"), MODEL, "--speculate", "ngram")
        cls.addClassCleanup(cls.server.kill)

    def ask(self, speculation, options, turns=2):
        """Returns everything in a conversation's answers except times and speculation counts."""
        said, drafted, accepted = [], 0, 0
        with Client(self.server.address) as client:
            session = client.create_session()
            for turn in range(turns):
                prompt = PROMPT if turn == 0 else "    def get_"
                if speculation is not None:
                    options = {**options, "speculation": speculation}
                for event in client.generate(prompt, session_id=session.session_id, max_tokens=150,
                                             logprobs=True, ignore_eos=True, **options):
                    if isinstance(event, TokenChunk):
                        said += zip(event.token_ids, event.logprobs)
                    elif isinstance(event, Finished):
                        usage = event.usage
                        said.append((event.reason, event.matched_stop, usage.position,
                                     usage.state_bytes, usage.generated_tokens))
                        drafted += usage.drafted_tokens
                        accepted += usage.accepted_tokens
            client.delete_session(session.session_id)
        return said, drafted, accepted

    def test_answers_are_the_same_in_any_company(self):
        jobs = [(how, options) for options in SAMPLINGS for how in (Speculation.OFF, None)]
        with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
            answers = list(pool.map(lambda job: self.ask(*job), jobs))
        for options, (plain, none, _), (guessed, _, _) in zip(SAMPLINGS, answers[::2], answers[1::2]):
            self.assertEqual(plain, guessed, options)
            self.assertEqual(none, 0)

    def test_guesses_are_counted(self):
        before = self.server.metrics()
        _, drafted, accepted = self.ask(Speculation.NGRAM, SAMPLINGS[0])
        after = self.server.metrics()
        self.assertGreater(drafted, 0)
        for name, count in (("ovq_drafted_tokens_total", drafted),
                            ("ovq_accepted_tokens_total", accepted)):
            self.assertEqual(value(after, name) - value(before, name), count, name)

    def test_a_wrong_value_is_named(self):
        with self.assertRaisesRegex(OvqError, "output.speculation: expected 0 to 2, got 7"):
            self.ask(7, {})
        code, _, stderr = run_to_end(os.path.join(BIN, "ovq-server"), "--model", MODEL,
                                     "--speculate", "most")
        self.assertEqual(code, 2)
        self.assertIn("--speculate: expected off or ngram, got 'most'", stderr)


def value(page, name):
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name + "{"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    arguments, rest = parser.parse_known_args()
    BIN = os.path.join(os.path.abspath(arguments.build), "bin")
    unittest.main(argv=[sys.argv[0], *rest])
