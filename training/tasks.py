"""Synthetic long-context tasks of the OVQ paper (sections 4.1, 8.4, 8.5), sizes set by fields.

A task makes whole sequences of token ids and says which tokens are scored. Sequences depend on the
fields, the length and the random generator alone. Run this file to look at a few.
"""

import argparse
import dataclasses
import json
import os
import sys

import numpy as np

from ovq.config import read_json_object


class TaskError(ValueError):
    """A task's fields or the asked length do not make a sequence."""


@dataclasses.dataclass(frozen=True)
class Sequences:
    """tokens int64, scored bool and seen int64, each [batch, length].

    scored marks the tokens that are to be predicted from those before them. seen says for such a
    token how many examples of its own function stand before its own (ICL), else 0.
    """
    tokens: np.ndarray
    scored: np.ndarray
    seen: np.ndarray


def _check(condition, name, value, wanted):
    if not condition:
        raise TaskError(f"{name}: {value!r} is not {wanted}")


def _distinct_rows(random, n_rows, n_columns, n_symbols):
    """[n_rows, n_columns] of symbols, no row twice, uniform over all such arrays."""
    rows = random.integers(n_symbols, size=(n_rows, n_columns))
    while True:
        _, first = np.unique(rows, axis=0, return_index=True)
        repeated = np.setdiff1d(np.arange(n_rows), first)
        if not len(repeated):
            return rows
        rows[repeated] = random.integers(n_symbols, size=(len(repeated), n_columns))


# The easiest sizes of a RecallTask, and of a FunctionTask's vectors, that training starts from.
_EASY = {"key_tokens": 3, "value_tokens": 3, "copies": 1}
_EASY_VECTOR_TOKENS = 2


@dataclasses.dataclass(frozen=True)
class RecallTask:
    """In-context recall (section 8.4): K V pairs, then a query section that repeats some of them.

        K1 -> V1 | K2 -> V2 | ... | Kp -> Vp ? K3 -> V3 | K1 -> V1 | ...

    Token ids: n_symbols symbols that keys and values share, then `->`, `|` and `?`, which begins
    the query section. No key and no value occurs twice. With copies > 1 (positional recall) every
    key stands in that many pairs with distinct values, all pairs in random order, and the query
    section repeats all pairs of the chosen keys, each key's in the order they stood in. Scored:
    the values of the query section.
    """
    key_tokens: int = 8
    value_tokens: int = 8
    n_symbols: int = 10000
    n_queries: int = 6  # distinct keys asked for
    copies: int = 1

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            _check(isinstance(value, int) and value >= 1, name, value, "a positive integer")

    @property
    def vocab_size(self):
        return self.n_symbols + 3

    @property
    def pair_tokens(self):
        return self.key_tokens + self.value_tokens + 2

    def n_keys(self, max_tokens):
        """Distinct keys in the longest sequence of at most max_tokens tokens."""
        asked = self.n_queries * self.copies * self.pair_tokens
        n_keys = (max_tokens - 1 - asked) // (self.pair_tokens * self.copies)
        _check(n_keys >= self.n_queries, "length", max_tokens, f"at least {1 + 2 * asked} tokens, "
               f"for {self.n_queries} queries of {self.copies} pairs of {self.pair_tokens} tokens")
        n_rows = n_keys * self.copies
        _check(4 * n_rows <= self.n_symbols ** min(self.key_tokens, self.value_tokens),
               "n_symbols", self.n_symbols, f"enough symbols for {n_rows} distinct keys and values")
        return n_keys

    def for_training(self, max_tokens, variety, random):
        """This task with so many queries that they take the share `variety` of max_tokens.

        Half of them at most; None: as it is. A sequence that asks more teaches more. Recall is
        learnt where keys and values are short and copies few, so in half of the cases their
        numbers are random, from _EASY up to the task's own.
        """
        if variety is None:
            return self
        sizes = {name: getattr(self, name) for name in _EASY}
        # a task that has nothing easier draws nothing
        if any(size > _EASY[name] for name, size in sizes.items()) and random.random() < 0.5:
            sizes = {name: int(random.integers(min(_EASY[name], size), size + 1))
                     for name, size in sizes.items()}
        sizes["copies"] = max(1, min(sizes["copies"], (max_tokens - 1) // (2 * self.pair_tokens)))
        task = dataclasses.replace(self, **sizes)
        asked = min(int(variety * max_tokens), (max_tokens - 1) // 2)
        n_queries = max(1, asked // (task.copies * task.pair_tokens))
        return dataclasses.replace(task, n_queries=n_queries)

    def narrowed(self, width, random):
        """This task with keys and values shorter; width from 0, as in _EASY, to 1, the task itself.

        As many tokens ask as before. Nothing is drawn.
        """
        del random
        sizes = {name: min(_EASY[name], size) + int(width * max(0, size - _EASY[name]))
                 for name, size in (("key_tokens", self.key_tokens),
                                    ("value_tokens", self.value_tokens))}
        task = dataclasses.replace(self, **sizes)
        n_queries = self.n_queries * self.pair_tokens // task.pair_tokens
        return dataclasses.replace(task, n_queries=n_queries)

    def pairs(self, keys, values):
        """[n_pairs, pair_tokens]: K -> V |"""
        arrow, end = (np.full((len(keys), 1), self.n_symbols + i) for i in (0, 1))
        return np.concatenate((keys, arrow, values, end), axis=1)

    def _sequence(self, n_keys, random):
        keys = _distinct_rows(random, n_keys, self.key_tokens, self.n_symbols)
        values = _distinct_rows(random, n_keys * self.copies, self.value_tokens, self.n_symbols)
        owner = random.permutation(np.repeat(np.arange(n_keys), self.copies))
        pairs = self.pairs(keys[owner], values)
        asked = random.permutation(n_keys)[:self.n_queries]
        # stable: the pairs of a key keep their order
        by_key = np.argsort(owner, kind="stable").reshape(n_keys, self.copies)
        queries = pairs[by_key[asked].ravel()]
        return np.concatenate((pairs.ravel(), [self.n_symbols + 2], queries.ravel()))

    def sequences(self, max_tokens, batch, random):
        n_keys = self.n_keys(max_tokens)
        tokens = np.stack([self._sequence(n_keys, random) for _ in range(batch)])
        scored = np.zeros(tokens.shape, bool)
        n_asked = self.n_queries * self.copies
        queries = scored[:, -n_asked * self.pair_tokens:].reshape(batch, n_asked, self.pair_tokens)
        queries[:, :, self.key_tokens + 1:-1] = True
        return Sequences(tokens, scored, np.zeros(tokens.shape, np.int64))


@dataclasses.dataclass(frozen=True)
class FunctionTask:
    """In-context learning of linear functions (section 8.5): x f y |, y = b + a P x.

        x1 f4 y1 | x2 f1 y2 | x3 f4 y3 | ...

    Every sequence draws n_functions functions: a permutation P, a and b, 0 < a < a_end and
    0 < b < b_end (the paper's appendix has 6, its section 4.1 has 5), and an identifier for each
    from n_identifiers special tokens. Examples are independent: a uniform function, x uniform in
    1..x_max. Token ids: the integers 0..y_max, then the identifiers, then `|`. Scored: y.
    """
    vector_tokens: int = 12
    x_max: int = 1998
    x_range: int = 0  # x is drawn from 1..x_range, 0: from all; the vocabulary is x_max's
    a_end: int = 6
    b_end: int = 6
    n_functions: int = 16
    n_identifiers: int = 128
    constant_percent: int = 0  # of the sequences: their functions give one random y for every x

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            least = {"a_end": 2, "b_end": 2, "x_range": 0, "constant_percent": 0}.get(name, 1)
            _check(isinstance(value, int) and value >= least, name, value,
                   f"an integer of at least {least}")
        _check(self.n_functions <= self.n_identifiers, "n_functions", self.n_functions,
               f"at most n_identifiers, {self.n_identifiers}")
        _check(self.x_range <= self.x_max, "x_range", self.x_range, f"at most x_max, {self.x_max}")
        _check(self.constant_percent <= 100, "constant_percent", self.constant_percent,
               "at most 100")

    @property
    def tokens_by_kind(self):
        """How many tokens there are of each kind, in the order of their ids."""
        return {"number": self.y_max + 1, "identifier": self.n_identifiers, "end": 1}

    @property
    def y_max(self):
        return (self.a_end - 1) * self.x_max + self.b_end - 1

    @property
    def vocab_size(self):
        return sum(self.tokens_by_kind.values())

    @property
    def example_tokens(self):
        return 2 * self.vector_tokens + 2

    def for_training(self, max_tokens, variety, random):
        """This task with a random number of functions: up to `variety` for every example.

        Never more than its own; None: as it is. That there are functions to be learnt is found
        out where they are few. What a function does is learnt where vectors are short, so in half of
        the cases their length is random, from _EASY_VECTOR_TOKENS up to the task's own.
        """
        if variety is None:
            return self
        width = self.vector_tokens
        # a task that has nothing easier draws nothing
        if width > _EASY_VECTOR_TOKENS and random.random() < 0.5:
            width = int(random.integers(_EASY_VECTOR_TOKENS, width + 1))
        task = dataclasses.replace(self, vector_tokens=width)
        most = int(variety * (max_tokens // task.example_tokens))
        n_functions = random.integers(1, max(1, min(self.n_functions, most)) + 1)
        return dataclasses.replace(task, n_functions=int(n_functions))

    def narrowed(self, width, random):
        """This task made easier; width from 0, the easiest, to 1, the task itself.

        In the share 1 - width of the sequences every function has one random y for all x, in the
        others x is from a random range, at most 1..x_max ** width. Where y is random, only the
        identifier tells it. Models that meet linear functions from the start learn the mean over
        all of a context's functions, which is a fair guess there, and go on without identifiers.
        """
        x_range = random.integers(1, int(self.x_max ** width) + 1)
        return dataclasses.replace(self, x_range=int(x_range),
                                   constant_percent=round(100 * (1 - width)))

    def _sequence(self, n_examples, random):
        width, n = self.vector_tokens, self.n_functions
        order = np.stack([random.permutation(width) for _ in range(n)])
        a, b = random.integers(1, self.a_end, n), random.integers(1, self.b_end, n)
        identifiers = random.permutation(self.n_identifiers)[:n]
        function = random.integers(n, size=n_examples)
        x = random.integers(1, (self.x_range or self.x_max) + 1, size=(n_examples, width))
        y = b[function, None] + a[function, None] * np.take_along_axis(x, order[function], axis=1)
        # a task without them draws nothing
        if self.constant_percent and random.integers(100) < self.constant_percent:
            y = random.integers(1, self.y_max + 1, size=(n, width))[function]
        name = self.y_max + 1 + identifiers[function, None]
        end = np.full((n_examples, 1), self.vocab_size - 1)
        same = function[:, None] == function[None, :]
        seen = np.tril(same, -1).sum(axis=1)
        return np.concatenate((x, name, y, end), axis=1).ravel(), seen

    def sequences(self, max_tokens, batch, random):
        n_examples = max_tokens // self.example_tokens
        _check(n_examples >= 1, "length", max_tokens, f"at least {self.example_tokens} tokens")
        tokens, seen = zip(*(self._sequence(n_examples, random) for _ in range(batch)))
        tokens, width = np.stack(tokens), self.vector_tokens
        example = np.zeros(self.example_tokens, bool)
        example[width + 1:-1] = True
        scored = np.tile(example, (batch, n_examples))
        seen = np.repeat(np.stack(seen), self.example_tokens, axis=1) * scored
        return Sequences(tokens, scored, seen)


TASKS = {"basic_icr": (RecallTask, {}),
         "positional_icr": (RecallTask, {"copies": 4, "n_queries": 1}),
         "linear_icl": (FunctionTask, {})}


def make_task(fields):
    """The task of {"name": ..., further fields}; those left out are the paper's."""
    fields = dict(fields)
    name = fields.pop("name", None)
    _check(name in TASKS, "task name", name, f"one of {', '.join(TASKS)}")
    kind, defaults = TASKS[name]
    known = [field.name for field in dataclasses.fields(kind)]
    for field in fields:
        _check(field in known, f"field of {name}", field, f"one of {', '.join(known)}")
    return kind(**{**defaults, **fields})


def json_fields(text):
    """A flag's JSON object."""
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return fields


def read_fields(folder):
    """The task of a model folder: that of its task.json; a byte model may have none."""
    path = os.path.join(folder, "task.json")
    if not os.path.exists(path):
        config = read_json_object(os.path.join(folder, "config.json"))
        return {"name": "python_files"} if config.get("tokenizer") == "bytes" else {}
    with open(path, encoding="utf-8") as file:
        try:
            return dict(json.load(file)["task"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: no task of export.py: {error!r}") from error


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--task", type=json_fields, default={"name": "basic_icr"},
                        help='its fields as JSON: {"name": "basic_icr", "key_tokens": 3}; names: '
                        f"{', '.join(TASKS)}; what is left out is as in the paper")
    parser.add_argument("--length", type=int, default=256, help="tokens of a sequence at most")
    parser.add_argument("--count", type=int, default=1, help="sequences to print")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    task = make_task(args.task)
    made = task.sequences(args.length, args.count, np.random.default_rng(args.seed))
    for tokens, scored in zip(made.tokens, made.scored):
        print(" ".join(f"[{token}]" if mark else str(token)
                       for token, mark in zip(tokens, scored)))
    print(f"{made.tokens.shape[1]} tokens, vocabulary {task.vocab_size}; [scored]", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except TaskError as error:
        sys.exit(f"tasks.py: {error}")
