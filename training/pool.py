"""Accuracy with a common pool of rows: closest pairs merge in whichever head they are closest.

A bounded head's rows are a fixed share of a session's (ovq.shares). Here the heads of all layers
that read the whole context share one total number of rows: after each chunk, its tokens have become
rows of every head, and the closest pair of any head merges until as many rows are left as shares of
--rows would leave. No server implements that; the PyTorch reference runs a sequence chunk by chunk,
in float32. Prints for every kind of memory the accuracy on the model's task, and the final number of
rows in a head.

    exact    full attention
    equal    --rows for each head
    shares   the shares in the folder's ovq.shares
    pool     --rows for each head on average; --scale weights a layer's distances

Distances are the rule's (closest_pair.py) except for V, which stays the mean |value|^2 of a head's
first tokens. Pairs merge after a chunk.
"""

import argparse
import heapq
import sys

import numpy as np
import torch

import score
from data import DataError
from ovq import mixers
from ovq.config import DICTIONARY_LAYER_TYPES, ConfigError, as_heads, share_of
from ovq.dictionary import read_chunk
from ovq.model import load_model
from scoring import DocumentExam, mean_text
from tasks import TaskError, json_fields, read_fields

MEMORIES = ("exact", "equal", "shares", "pool")


class HeadRows:
    """One head's rows with the distances between all of them; every row may merge."""

    def __init__(self, head_dim, value_head_dim, value_weight, n_sized):
        self.keys, self.values = np.zeros((0, head_dim)), np.zeros((0, value_head_dim))
        self.counts, self.distances = np.zeros(0), np.zeros((0, 0))
        self._value_weight, self._n_sized = value_weight, n_sized
        self._scale = None  # factor of values in a distance

    def _apart(self, keys, values):
        """Returns squared distances between these keys and values and all rows."""
        def squared(a, b):
            return np.maximum(0, np.square(a).sum(-1)[:, None] + np.square(b).sum(-1) - 2 * a @ b.T)
        return squared(keys, self.keys) + self._scale * squared(values, self.values)

    def append(self, keys, values):
        """Makes rows of tokens. Distances are computed once they have a scale."""
        n = len(self.keys)
        self.keys, self.values = np.concatenate((self.keys, keys)), np.concatenate((self.values, values))
        self.counts = np.concatenate((self.counts, np.ones(len(keys))))
        if self._scale is None:
            if len(self.keys) < self._n_sized:
                return
            self._scale, n = self._value_weight / np.square(self.values).sum(-1).mean(), 0
        fresh = self._apart(self.keys[n:], self.values[n:])
        whole = np.full((len(self.keys),) * 2, np.inf)
        whole[:n, :n] = self.distances
        whole[n:], whole[:, n:] = fresh, fresh.T
        np.fill_diagonal(whole, np.inf)
        self.distances = whole

    def merges(self):
        """Yields the least distance, then, after each further merge, the next one.

        A merged row keeps its place until the generator is closed."""
        closest, nearest = self.distances.min(1), self.distances.argmin(1)
        alive = np.ones(len(self.keys), bool)
        try:
            while True:
                i = int(closest.argmin())
                yield closest[i]
                i, j = sorted((i, int(nearest[i])))
                share = self.counts[j] / (self.counts[i] + self.counts[j])
                for rows in (self.keys, self.values):
                    rows[i] += share * (rows[j] - rows[i])
                self.counts[i] += self.counts[j]
                alive[j] = False
                fresh = np.where(alive, self._apart(self.keys[i:i + 1], self.values[i:i + 1])[0], np.inf)
                fresh[i] = np.inf
                self.distances[j], self.distances[:, j] = np.inf, np.inf
                self.distances[i], self.distances[:, i] = fresh, fresh
                closest[j] = np.inf
                lost = alive & ((nearest == i) | (nearest == j))
                lost[i] = True
                closest[lost] = self.distances[lost].min(1)
                nearest[lost] = self.distances[lost].argmin(1)
                nearer = fresh < closest
                closest[nearer], nearest[nearer] = fresh[nearer], i
        finally:
            self.keys, self.values, self.counts = self.keys[alive], self.values[alive], self.counts[alive]
            self.distances = self.distances[np.ix_(alive, alive)]


def merge_closest(heads, scales, n_rows):
    """Merges the closest pair of any head until the heads have n_rows rows together."""
    over = sum(len(head.keys) for head in heads) - n_rows
    if over <= 0:
        return
    merging = [head.merges() for head in heads]
    lowest = [(scale * next(pairs), i) for i, (pairs, scale) in enumerate(zip(merging, scales))]
    heapq.heapify(lowest)
    for _ in range(over):
        _, i = lowest[0]
        heapq.heapreplace(lowest, (scales[i] * next(merging[i]), i))
    for pairs in merging:
        pairs.close()


class Reader:
    """Runs a model on one sequence chunk by chunk; its layers are sliding ones and ones with rows.
    """

    def __init__(self, model, memory, n_rows, chunk_len, scales=None):
        """scales: factors of the distances in each layer that has rows."""
        config = model.config
        for i, kind in enumerate(config.layer_types):
            if kind not in ("sliding_attention", *DICTIONARY_LAYER_TYPES):
                raise ValueError(f"layer_types[{i}]: {kind!r} is neither sliding attention nor a layer with rows")
        self._model, self._memory, self._chunk_len = model, memory, chunk_len
        self._bounded = [i for i, kind in enumerate(config.layer_types) if kind in DICTIONARY_LAYER_TYPES]
        n_heads = config.num_key_value_heads
        self._caps, self.rows, self._scales = {}, {}, []
        for layer, scale in zip(self._bounded, scales or [1.0] * len(self._bounded)):
            shares = as_heads(config.shares_of(layer)) if memory == "shares" else (1.0,)
            self._caps[layer] = [share_of(n_rows, share) for share in shares * (n_heads // len(shares))]
            self.rows[layer] = [HeadRows(config.head_dim, config.value_head_dim, config.pair_rule.value_weight,
                                         cap // 2 + 1) for cap in self._caps[layer]]
            self._scales += [scale] * n_heads

    def _read(self, rows, q, k, v):
        """For one head: attention of a chunk's queries over the head's rows and the chunk's keys
        and values."""
        old = torch.from_numpy(np.concatenate((rows.keys, rows.values), -1)).float()[None, None]
        return read_chunk(q, k, v, old, torch.from_numpy(rows.counts)[None, None])

    def _mix(self, i, q, k, v, window):
        """window: keys and values of sliding layers so far, which this extends."""
        kind = self._model.config.layer_types[i]
        if kind in DICTIONARY_LAYER_TYPES:
            return torch.cat([self._read(rows, *(x[:, h:h + 1] for x in (q, k, v)))
                              for h, rows in enumerate(self.rows[i])], 1)
        length = self._model.config.sliding_window
        keys, values = (torch.cat((old[:, :, max(0, old.shape[2] - length + 1):], x), 2)
                        for old, x in zip(window.get(i, (k[:, :, :0], v[:, :, :0])), (k, v)))
        window[i] = keys, values
        n_old = keys.shape[2] - k.shape[2]
        ends = torch.arange(n_old + 1, keys.shape[2] + 1)
        ranges = torch.stack((torch.clamp(ends - length, min=0), ends)).to(torch.int32)
        group = q.shape[2]
        out = mixers.attend(q.flatten(2, 3), keys, values, ranges.repeat(1, group))
        return out.unflatten(2, (group, q.shape[3]))

    def _after_chunk(self, tokens):
        for layer, heads in self.rows.items():
            for h, head in enumerate(heads):
                head.append(*(x[0, h].double().numpy() for x in tokens[layer]))
        if self._memory == "pool":
            heads = [head for layer in self._bounded for head in self.rows[layer]]
            merge_closest(heads, self._scales, sum(map(sum, self._caps.values())))
        elif self._memory != "exact":
            for layer, heads in self.rows.items():
                for head, cap in zip(heads, self._caps[layer]):
                    merge_closest([head], [1.0], cap)

    def _heads(self, i, y, begin, tables, last):
        """Returns q, k and v of layer i for its inputs y, whose first token is at `begin`.

        tables: of RoPE, for all tokens; last: the newest input of each layer so far, for the token shift, which this sets."""
        attention = self._model.model.layers[i].self_attn
        n_before = 1 if self._model.config.token_shift and i in last else 0
        read = torch.cat((last[i], y), 1) if n_before else y
        last[i] = y[:, -1:]
        rope = tuple(table[begin - n_before:begin + y.shape[1]] for table in tables)
        return tuple(part[:, :, n_before:] for part in attention._heads(read, rope, begin - n_before))

    @torch.no_grad()
    def logits(self, tokens):
        """Returns logits [n_tokens, vocab] of tokens [n_tokens]."""
        config, network = self._model.config, self._model.model
        tables = mixers.rope_tables(len(tokens), config.head_dim, config.rope_theta, tokens.device)
        window, last, outs = {}, {}, []
        for begin in range(0, len(tokens), self._chunk_len):
            chunk = slice(begin, begin + self._chunk_len)
            x, passed = self._model._embed(tokens[None, chunk], begin), {}
            for i, layer in enumerate(network.layers):
                q, k, v = self._heads(i, layer.input_layernorm(x, torch.float32), begin, tables, last)
                passed[i] = k, v
                out = self._mix(i, q.unflatten(1, (-1, config.group_size)), k, v, window).flatten(1, 2)
                x = layer.add_mlp(x + layer.self_attn.o_proj(out.transpose(1, 2).flatten(2)), torch.float32)
            outs.append(self._model._logits(network.norm(x, torch.float32) if config.final_norm else x)[0])
            if begin + self._chunk_len <= len(tokens):
                self._after_chunk(passed)
        return torch.cat(outs)

    def n_rows(self):
        return [len(head.keys) for layer in self._bounded for head in self.rows[layer]]


def make_parser(description, rows, sequences):
    """Makes a parser with the flags of programs that use a Reader; the numbers are their defaults.
    """
    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True, help="native folder of sliding, full and OVQ layers, with a task.json")
    add("--task", type=json_fields, default={}, help="JSON: fields in place of task.json's")
    add("--config", type=json_fields, default={}, metavar="JSON", help="as score.py has it")
    add("--length", type=score.positive, default=2048, help="longest sequence, in tokens")
    add("--rows", type=score.positive, default=rows, help="of a head, in the mean")
    add("--chunk", type=score.positive, default=64, help="tokens between merges")
    add("--sequences", type=score.positive, default=sequences)
    add("--seed", type=int, default=0, help="of the sequences")
    return parser


def listed_of(parser, flag, names):
    """Adds a flag whose value is a list of some of the names; by default all."""
    def some(text):
        if unknown := set(wanted := score.listed(str)(text)) - set(names):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not of {', '.join(names)}")
        return wanted
    parser.add_argument(flag, type=some, default=",".join(names), help="of them, in turn")


def parse_args(arguments):
    parser = make_parser(__doc__, rows=128, sequences=8)
    listed_of(parser, "--memories", MEMORIES)
    parser.add_argument("--scale", type=score.listed(float),
                        help="pool: of the distances of each layer that has rows")
    return parser.parse_args(arguments)


def main(arguments=None):
    args = parse_args(arguments)
    if args.config:
        parent, args.model, _ = score.with_config(args.model, args.config)
    if {**read_fields(args.model), **args.task}.get("name") in DocumentExam.names:
        raise ValueError(f"{args.model}: --model: its task has no right answers")
    exam, label = score.make_exam(args)
    model, made = load_model(args.model, rule="closest-pair"), exam.sequences(args.length, args.sequences)
    print(f"{label}, {args.sequences} sequences of {made.tokens.shape[1]} tokens, {args.rows} rows a head", flush=True)
    for memory in args.memories:
        right, rows = [], []
        for tokens, scored in zip(made.tokens, made.scored):
            reader = Reader(model, memory, args.rows, args.chunk, args.scale)
            top_ids = reader.logits(torch.from_numpy(tokens[:-1])).argmax(-1).numpy()
            right.append(100 * (top_ids == tokens[1:])[scored[1:]].mean())
            rows.append(reader.n_rows())
        print(f"{memory}: {mean_text(right, 1, '%')}, rows of the heads in the mean "
              f"{', '.join(f'{n:.0f}' for n in np.mean(rows, 0))}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("pool.py: interrupted")
    except (ConfigError, DataError, TaskError, ValueError, OSError) as error:
        sys.exit(f"pool.py: {error}")
