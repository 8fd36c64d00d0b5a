"""Sequences of a task as ovq-inspect reads them."""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

import shares

TASK = {"name": "basic_icr", "key_tokens": 2, "value_tokens": 2, "n_symbols": 60, "n_queries": 2}
# stands for ovq-inspect: ends with 3 after printing its arguments and the lines of the file
PROGRAM = f"""#!{sys.executable}
import sys
print(sys.argv[1:])
print(open(sys.argv[3]).read(), end="")
sys.exit(3)
"""


class SharesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_the_program_reads_the_tasks_sequences_and_its_own_flags(self):
        self.write("task.json", json.dumps({"task": TASK}))
        program = self.write("inspect", PROGRAM)
        os.chmod(program, 0o755)
        out, said = os.path.join(self.folder, "out"), io.StringIO()
        with open(out, "w", encoding="utf-8") as file:
            kept = os.dup(1)
            sys.stdout.flush()
            os.dup2(file.fileno(), 1)
            try:
                with contextlib.redirect_stderr(said):
                    status = shares.main(["--model", self.folder, "--inspect", program, "--length", "80",
                                          "--sequences", "2", "--memory", "paper", "--write"])
                sys.stdout.flush()
            finally:
                os.dup2(kept, 1)
                os.close(kept)
        self.assertEqual(status, 3)
        with open(out, encoding="utf-8") as file:
            arguments, *lines = file.read().splitlines()
        self.assertIn("basic_icr", said.getvalue())
        self.assertIn("'--sequences', '2', '--memory', 'paper', '--write'", arguments)
        self.assertEqual(len(lines), 4)

    def test_scored_tokens_are_indices(self):
        args, _ = shares.parse_args(["--model", "", "--inspect", "", "--task", json.dumps(TASK)])
        exam, _ = shares.score.make_exam(args)
        made, file = exam.sequences(80, 3), io.StringIO()
        shares.write_sequences(made, file)
        for line, tokens, scored in zip(file.getvalue().splitlines(), made.tokens, made.scored):
            read = json.loads(line)
            self.assertEqual(read["tokens"], tokens.tolist())
            self.assertTrue(scored[read["scored"]].all())
            self.assertEqual(len(read["scored"]), scored.sum() - scored[0])


if __name__ == "__main__":
    unittest.main()
