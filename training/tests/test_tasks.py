"""The tasks' sequences, parsed and compared with their definition."""

import argparse
import collections
import dataclasses
import itertools
import os
import subprocess
import sys
import unittest

import numpy as np

import support
from tasks import FunctionTask, RecallTask, TaskError, json_fields, make_task

SMALL_RECALL = {"key_tokens": 2, "value_tokens": 2, "n_symbols": 6}


def made(task, length, batch=1, seed=0):
    return task.sequences(length, batch, np.random.default_rng(seed))


def take_apart(task, tokens):
    """Returns ([(key, value)] of the context, the same of the query section), tuples of token ids.
    """
    query_mark, arrow, end = task.n_symbols + 2, task.n_symbols, task.n_symbols + 1
    begin = tokens.index(query_mark)
    sections = []
    for section in (tokens[:begin], tokens[begin + 1:]):
        entries, rest = [], section
        while rest:
            stop = rest.index(end)
            entry, rest = rest[:stop], rest[stop + 1:]
            at = entry.index(arrow)
            entries.append((tuple(entry[:at]), tuple(entry[at + 1:])))
        sections.append(entries)
    return sections


def deviations(counts, n, p):
    """Returns by how many standard deviations each count of n independent events of chance p is
    off."""
    return abs(np.asarray(counts) - n * p) / (n * p * (1 - p)) ** 0.5


class RecallTest(unittest.TestCase):
    def check_sequence(self, task, tokens, scored):
        context, queries = take_apart(task, tokens)
        for key, value in context:
            self.assertEqual((len(key), len(value)), (task.key_tokens, task.value_tokens))
            self.assertTrue(set(key + value) <= set(range(task.n_symbols)))
        values = [value for _, value in context]
        self.assertEqual(len(set(values)), len(values))
        copies = collections.Counter(key for key, _ in context)
        self.assertEqual(set(copies.values()), {task.copies})
        asked = [key for key, _ in queries][::task.copies]
        self.assertEqual(len(set(asked)), task.n_queries)
        # each key's pairs as in the context, in that order
        self.assertEqual(queries, [pair for key in asked for pair in context if pair[0] == key])
        self.check_scored(task, tokens, scored, queries)

    def check_scored(self, task, tokens, scored, queries):
        marks = np.flatnonzero(scored).tolist()
        self.assertEqual([tokens[i] for i in marks], [t for _, value in queries for t in value])
        self.assertGreater(min(marks), tokens.index(task.n_symbols + 2))
        for i in marks:  # each value's first token follows ->, its last one is followed by |
            before = i - (i - marks[0]) % task.pair_tokens
            self.assertEqual(tokens[before - 1], task.n_symbols)
            self.assertEqual(tokens[before + task.value_tokens], task.n_symbols + 1)

    def test_sequences_are_what_the_task_says(self):
        for task, length in ((RecallTask(), 500), (RecallTask(**SMALL_RECALL, n_queries=2), 60),
                             (RecallTask(3, 1, 50, 1), 40), (RecallTask(1, 3, 40, 5), 90),
                             (RecallTask(copies=4, n_queries=1), 1000),
                             (RecallTask(2, 3, 11, n_queries=2, copies=3), 260)):
            sequences = made(task, length, batch=20)
            for tokens, scored in zip(sequences.tokens.tolist(), sequences.scored):
                with self.subTest(task=task):
                    self.check_sequence(task, tokens, scored)
            self.assertFalse(sequences.seen.any())

    def test_a_sequence_written_out(self):
        basic = made(RecallTask(**SMALL_RECALL, n_queries=2), 36)
        self.assertEqual(basic.tokens[0].tolist(), [  # 6 is ->, 7 is |, 8 is ?
            5, 3, 6, 0, 0, 7, 1, 0, 6, 1, 4, 7, 3, 1, 6, 3, 5, 7, 8,
            5, 3, 6, 0, 0, 7, 1, 0, 6, 1, 4, 7])
        self.assertEqual(np.flatnonzero(basic.scored[0]).tolist(), [22, 23, 28, 29])
        positional = made(RecallTask(**SMALL_RECALL, n_queries=1, copies=3), 60)
        self.assertEqual(positional.tokens[0].tolist(), [
            3, 1, 6, 1, 0, 7, 5, 3, 6, 0, 0, 7, 5, 3, 6, 1, 4, 7,
            5, 3, 6, 3, 5, 7, 3, 1, 6, 3, 3, 7, 3, 1, 6, 5, 4, 7, 8,
            3, 1, 6, 1, 0, 7, 3, 1, 6, 3, 3, 7, 3, 1, 6, 5, 4, 7])

    def test_lengths_fill_what_is_asked(self):
        for task in (RecallTask(**SMALL_RECALL, n_queries=2),
                     RecallTask(2, 3, 9, n_queries=2, copies=3)):
            unit = task.pair_tokens * task.copies
            least = 1 + 2 * task.n_queries * unit
            for length in range(least, least + 2 * unit):
                self.assertIn(length - made(task, length).tokens.shape[1], range(unit))

    def test_every_pair_is_asked_for_equally_often(self):
        task, n = RecallTask(1, 1, 20, n_queries=1), 4000
        asked, symbols = collections.Counter(), collections.Counter()
        for tokens in made(task, 4 * 5 + 1, batch=n).tokens.tolist():
            context, queries = take_apart(task, tokens)
            asked[context.index(queries[0])] += 1
            symbols[context[2][0][0]] += 1
        self.assertEqual((len(asked), len(symbols)), (4, 20))
        # 24 counts of fair draws: the chance that any is off by 4.5 or more is one in ten thousand
        self.assertLess(deviations(list(asked.values()), n, 1 / 4).max(), 4.5)
        self.assertLess(deviations(list(symbols.values()), n, 1 / 20).max(), 4.5)

    def test_training_asks_more_and_easier(self):
        random = np.random.default_rng(3)
        task = RecallTask(key_tokens=5, value_tokens=4, n_symbols=30, copies=3)
        self.assertIs(task.for_training(600, None, random), task)
        sizes = collections.Counter()
        for _ in range(300):
            easier = task.for_training(600, 0.25, random)
            sizes[easier.key_tokens, easier.value_tokens, easier.copies] += 1
            asked = easier.n_queries * easier.copies * easier.pair_tokens
            self.assertLessEqual(asked, 150)
            self.assertGreater(asked, 150 - easier.copies * easier.pair_tokens)
            easier.sequences(600, 1, random)
        self.assertEqual(len(sizes), 3 * 2 * 3)
        # half of all, and the one in 18 of the other half: 158 of 300, with a deviation of 9
        self.assertLess(abs(sizes[5, 4, 3] - 158), 40)
        easiest = RecallTask(key_tokens=3, value_tokens=2, n_symbols=30)
        before = random.bit_generator.state
        self.assertEqual(easiest.for_training(600, 0.25, random),
                         dataclasses.replace(easiest, n_queries=150 // 7))
        self.assertEqual(random.bit_generator.state, before)
        # two pairs fit 24 tokens, one of them queried: no room for copies
        self.assertEqual(task.for_training(24, 0.5, random).copies, 1)

    def test_narrowed_has_shorter_keys_and_values(self):
        task = RecallTask(key_tokens=8, value_tokens=5, n_queries=9)
        random = np.random.default_rng(4)
        before = random.bit_generator.state
        sizes = [(easier.key_tokens, easier.value_tokens, easier.n_queries)
                 for easier in (task.narrowed(width, random) for width in (0, 0.5, 1))]
        # 9 queries of 15 tokens are 16 of 8 and 12 of 11
        self.assertEqual(sizes, [(3, 3, 16), (5, 4, 12), (8, 5, 9)])
        short = RecallTask(key_tokens=2, value_tokens=3)
        self.assertEqual(short.narrowed(0, random), short)
        self.assertEqual(random.bit_generator.state, before)

    def test_impossible_sizes_name_the_field(self):
        with self.assertRaisesRegex(TaskError, "^length: 216 is not at least 217"):
            made(RecallTask(), 216)
        with self.assertRaisesRegex(TaskError, "^n_symbols: 6 .* 10 distinct"):
            made(RecallTask(**SMALL_RECALL, n_queries=1), 67)
        for field in ("key_tokens", "value_tokens", "n_symbols", "n_queries", "copies"):
            for value in (0, 1.5, "4"):
                with self.assertRaisesRegex(TaskError, f"^{field}: {value!r} is not"):
                    make_task({"name": "basic_icr", field: value})


def explanations(examples, task):
    """Returns every (permutation, a, b) in range by which y = b + a P x for all of the examples."""
    return [(order, a, b) for order in itertools.permutations(range(task.vector_tokens))
            for a in range(1, task.a_end) for b in range(1, task.b_end)
            if all(y == [b + a * x[i] for i in order] for x, y in examples)]


class FunctionTest(unittest.TestCase):
    def take_apart(self, task, tokens, scored):
        """Returns [(x, identifier, y)] after checking the marks."""
        width, size = task.vector_tokens, task.example_tokens
        rows = [tokens[i:i + size] for i in range(0, len(tokens), size)]
        marks = [False] * (width + 1) + [True] * width + [False]
        self.assertEqual(scored.tolist(), marks * len(rows))
        self.assertEqual({row[-1] for row in rows}, {task.vocab_size - 1})
        return [(row[:width], row[width], row[width + 1:-1]) for row in rows]

    def test_one_function_explains_all_examples_of_an_identifier(self):
        task = FunctionTask(vector_tokens=4, x_max=50, n_functions=3, n_identifiers=7)
        sequences = made(task, 30 * 10, batch=20)
        for tokens, scored, seen in zip(sequences.tokens.tolist(), sequences.scored,
                                        sequences.seen):
            by_name = collections.defaultdict(list)
            for i, (x, name, y) in enumerate(self.take_apart(task, tokens, scored)):
                self.assertTrue(all(1 <= value <= 50 for value in x))
                self.assertTrue(all(0 <= value <= task.y_max for value in y))
                self.assertIn(name - task.y_max - 1, range(7))
                begin = i * task.example_tokens
                self.assertEqual(seen[begin:begin + 10].tolist(),
                                 [0] * 5 + [len(by_name[name])] * 4 + [0])
                by_name[name].append((x, y))
            self.assertLessEqual(len(by_name), 3)
            for examples in by_name.values():
                self.assertTrue(explanations(examples, task))

    def test_a_sequence_written_out(self):
        task = FunctionTask(vector_tokens=3, x_max=9, n_functions=2, n_identifiers=4)
        sequence = made(task, 45, seed=3)
        # 54 stands for y = 5 + (x3, x2, x1), 52 for y = 3 + 5 (x1, x3, x2), 55 is |
        self.assertEqual(sequence.tokens[0].tolist(), [
            7, 7, 1, 54, 6, 12, 12, 55,
            2, 5, 4, 52, 13, 23, 28, 55,
            8, 5, 4, 54, 9, 10, 13, 55,
            4, 6, 6, 54, 11, 11, 9, 55,
            2, 7, 7, 54, 12, 12, 7, 55])
        self.assertEqual(sequence.seen[0].reshape(5, 8)[:, 4].tolist(), [0, 0, 1, 2, 3])

    def test_ranges_of_a_and_b_leave_the_tokens_as_they_are(self):
        task = FunctionTask(vector_tokens=3, x_max=9, n_functions=4, n_identifiers=5, a_range=2, b_range=1)
        self.assertEqual(task.vocab_size, FunctionTask(x_max=9, n_functions=4, n_identifiers=5).vocab_size)
        sequences = made(task, 8 * 50, batch=4)
        drawn = set()
        for tokens, scored in zip(sequences.tokens.tolist(), sequences.scored):
            for x, _, y in self.take_apart(task, tokens, scored):
                self.assertIn(sorted(y), ([a * value + 1 for value in sorted(x)] for a in (1, 2)))
                drawn.add((sum(y) - 3) // sum(x))
        self.assertEqual(drawn, {1, 2})

    def test_narrowed_has_smaller_numbers_and_the_same_tokens(self):
        task, random = FunctionTask(vector_tokens=2, x_max=9, n_functions=2), np.random.default_rng(4)
        ranges = collections.Counter(task.narrowed(0.5, random).x_range for _ in range(300))
        self.assertEqual(set(ranges), {1, 2, 3})
        self.assertGreater(min(ranges.values()), 60)  # of 100, with a deviation of 8
        self.assertEqual(task.narrowed(0, random).x_range, 1)
        narrow = dataclasses.replace(task, x_range=1)
        self.assertEqual(narrow.vocab_size, task.vocab_size)
        values = collections.defaultdict(set)
        for row in made(narrow, 6 * 20).tokens.reshape(-1, 6).tolist():
            self.assertEqual(row[:2], [1, 1])
            values[row[2]].add(tuple(row[3:5]))
        self.assertEqual([len(seen) for seen in values.values()], [1, 1])

    def test_narrowed_has_constant_functions_at_first(self):
        task, random = FunctionTask(vector_tokens=2, x_max=9, n_functions=2), np.random.default_rng(4)
        percents = [task.narrowed(width, random).constant_percent for width in (0, 0.25, 1)]
        self.assertEqual(percents, [100, 75, 0])
        constant = made(dataclasses.replace(task, constant_percent=25), 6 * 20, batch=400)
        n_constant, drawn = 0, collections.Counter()
        for tokens in constant.tokens.tolist():
            values = collections.defaultdict(list)
            for begin in range(0, len(tokens), 6):
                *x, name = tokens[begin:begin + 3]
                values[name].append((x, tokens[begin + 3:begin + 5]))
            # same name, different x: same y
            same = [y == seen[0][1] for seen in values.values() for x, y in seen
                    if x != seen[0][0]]
            if same and all(same):
                n_constant += 1
                drawn.update(y for seen in values.values() for y in seen[0][1])
        self.assertLess(abs(n_constant - 100), 40)  # a deviation of 9
        self.assertEqual((min(drawn), max(drawn)), (1, task.y_max))

    def test_half_of_the_training_sequences_have_vectors_of_random_length(self):
        task, random = FunctionTask(vector_tokens=4, x_max=9, n_functions=6), np.random.default_rng(5)
        self.assertIs(task.for_training(100, None, random), task)
        easier = [task.for_training(100, 0.4, random) for _ in range(600)]
        lengths = collections.Counter(task.vector_tokens for task in easier)
        self.assertEqual(set(lengths), {2, 3, 4})
        self.assertLess(deviations([lengths[2], lengths[3]], 600, 1 / 6).max(), 4.5)
        self.assertEqual({task.vocab_size for task in easier}, {task.vocab_size})
        # 0.4 for each of 16, 12 and 10 examples, but never more than the task's own
        most = [max(task.n_functions for task in easier if task.vector_tokens == length)
                for length in (2, 3, 4)]
        self.assertEqual(most, [6, 4, 4])
        # vectors of the shortest length draw no lengths
        short = dataclasses.replace(task, vector_tokens=2)
        drawn = [short.for_training(100, 0.4, np.random.default_rng(seed)).n_functions
                 for seed in range(20)]
        self.assertEqual(drawn, [np.random.default_rng(seed).integers(1, 7) for seed in range(20)])

    def test_lengths_fill_what_is_asked(self):
        task = FunctionTask(vector_tokens=3, x_max=9)
        for length in range(8, 26):
            self.assertEqual(made(task, length).tokens.shape, (1, length - length % 8))

    def test_functions_and_numbers_are_drawn_evenly(self):
        task, n = FunctionTask(vector_tokens=2, x_max=10, a_end=4, b_end=4, n_functions=3,
                               n_identifiers=5), 2000
        names, xs, functions = (collections.Counter() for _ in range(3))
        for tokens in made(task, 6 * 6, batch=n).tokens.tolist():
            rows = [tokens[i:i + 6] for i in range(0, len(tokens), 6)]
            names[rows[0][2]] += 1
            xs[rows[0][0]] += 1
            same = [(row[:2], row[3:5]) for row in rows if row[2] == rows[0][2]]
            found = explanations(same, task)
            if len(found) == 1:
                functions[found[0]] += 1
        # as above; an identifier's function can be inferred only after some examples, the same
        # share for each: two permutations, three a, three b
        self.assertEqual((len(names), len(xs), len(functions)), (5, 10, 18))
        self.assertLess(deviations(list(names.values()), n, 1 / 5).max(), 4.5)
        self.assertLess(deviations(list(xs.values()), n, 1 / 10).max(), 4.5)
        n_known = sum(functions.values())
        self.assertGreater(n_known, n / 2)
        self.assertLess(deviations(list(functions.values()), n_known, 1 / 18).max(), 4.5)

    def test_impossible_sizes_name_the_field(self):
        with self.assertRaisesRegex(TaskError, "^length: 25 is not at least 26"):
            made(FunctionTask(), 25)
        with self.assertRaisesRegex(TaskError, "^n_functions: 129 .* n_identifiers, 128"):
            FunctionTask(n_functions=129)
        for field, largest in (("x_range", 9), ("a_range", 4), ("b_range", 2)):
            with self.assertRaisesRegex(TaskError, f"^{field}: 10 is not at most {largest}, the largest {field[0]}"):
                FunctionTask(x_max=9, a_end=5, b_end=3, **{field: 10})
        with self.assertRaisesRegex(TaskError, "^constant_percent: 101 is not at most 100"):
            FunctionTask(constant_percent=101)
        for field, value in (("vector_tokens", 0), ("x_max", 2.5), ("a_end", 1), ("b_end", 1),
                             ("x_range", -1), ("a_range", -1)):
            with self.assertRaisesRegex(TaskError, f"^{field}: {value!r} is not"):
                make_task({"name": "linear_icl", field: value})


class TasksTest(unittest.TestCase):
    def test_the_papers_sizes(self):
        basic, positional, functions = (make_task({"name": name}) for name in (
            "basic_icr", "positional_icr", "linear_icl"))
        self.assertEqual((basic.key_tokens, basic.value_tokens, basic.n_queries, basic.copies),
                         (8, 8, 6, 1))
        self.assertEqual((positional.n_queries, positional.copies), (1, 4))
        self.assertEqual((functions.vector_tokens, functions.n_functions,
                          functions.n_identifiers), (12, 16, 128))
        # the largest y a function can give is the largest integer token
        self.assertEqual(functions.y_max, 5 * functions.x_max + 5)

    def test_sequences_depend_on_the_generator_alone(self):
        for name, length in (("basic_icr", 400), ("positional_icr", 400), ("linear_icl", 100)):
            task = make_task({"name": name})
            first, again, other = (made(task, length, batch=2, seed=seed) for seed in (5, 5, 6))
            np.testing.assert_array_equal(first.tokens, again.tokens)
            self.assertFalse(np.array_equal(first.tokens, other.tokens))
            self.assertFalse(np.array_equal(first.tokens[0], first.tokens[1]))
            self.assertGreater(task.vocab_size, first.tokens.max())

    def test_unknown_names_are_named(self):
        with self.assertRaisesRegex(TaskError, "^task name: 'recall' .* basic_icr"):
            make_task({"name": "recall"})
        with self.assertRaisesRegex(TaskError, "^field of linear_icl: 'copies' .* x_max"):
            make_task({"name": "linear_icl", "copies": 2})

    def test_fields_of_a_flag_are_an_object(self):
        self.assertEqual(json_fields('{"copies": 2}'), {"copies": 2})
        for text, wanted in (("[1]", "'\\[1\\]' is not a JSON object"), ("{", "'{' is not JSON: .* column 2")):
            with self.assertRaisesRegex(argparse.ArgumentTypeError, wanted):
                json_fields(text)

    def test_the_command_marks_what_is_scored(self):
        script = os.path.join(support.TRAINING, "tasks.py")
        fields = '{"name": "basic_icr", "key_tokens": 1, "value_tokens": 1, "n_queries": 1}'
        shown = subprocess.run([sys.executable, script, "--task", fields, "--length", "9"],
                               capture_output=True, text=True, check=True)
        *head, last = shown.stdout.split()
        self.assertEqual(head[:4] + [last], head[5:7] + [head[7][1:-1], "10001", "10001"])
        failed = subprocess.run([sys.executable, script, "--length", "3"], capture_output=True,
                                text=True, check=False)
        self.assertEqual(failed.returncode, 1)
        self.assertIn("tasks.py: length: 3", failed.stderr)


if __name__ == "__main__":
    unittest.main()
