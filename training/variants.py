"""Compares variants of the closest-pair rule, each applied to the same model.

A sequence is run by the PyTorch reference chunk by chunk, in float32 (pool.py); heads choose merges
in float64, from all distances. After each chunk, pairs of rows merge until a head has its share of
--rows. Prints for every variant the accuracy on the model's task, or bits per byte of documents, and
the difference to the rule on the same sequences:

    rule         the closest pair, one after another, by |k - k|^2 + w / V |v - v|^2
    rounds       disjoint pairs, the closest first; a row merges again when no disjoint pair is left
    ward         distances times c_i c_j / (c_i + c_j), a merge's increase of the sum of squares (Ward)
    average      mean distances between the tokens of two rows: adds both rows' variances
    spread       keys and values each in units of their variance, instead of values by their size
    sizes        distances times the mean |value|^2 of both rows over V
    attention    distances times (0.3 / N + a_i + a_j)^0.5; a is the share of the attention that a row
                 received, averaged over chunks with 0.9 for the past, and summed in merges
    variance     the rule, read with |q|^2 s^2 / (2 d) added to scores, s^2 the variance of a row's keys
"""

import sys

import numpy as np
import torch

import score
from data import DEFAULT_ROOT, DataError
from ovq.config import ConfigError
from ovq.model import load_model
from pool import Reader, listed_of, make_parser
from scoring import DocumentExam, mean_text
from tasks import TaskError

VARIANTS = ("rule", "rounds", "ward", "average", "spread", "sizes", "attention", "variance")
_PAST = 0.9  # decay of the attention that a row has received, with each chunk
_POWER, _LEAST = 0.5, 0.3


def squared_distances(a, b):
    """Returns squared distances [len(a), len(b)]."""
    return np.maximum(0, np.square(a).sum(-1)[:, None] + np.square(b).sum(-1) - 2 * a @ b.T)


class VariantRows:
    """One head: keys [n, d], values [n, dv], counts [n] in float64.

    n_sized: number of tokens after which V and the variances are computed."""

    def __init__(self, variant, cap, value_weight, n_sized):
        self._variant, self._cap, self._value_weight, self._n_sized = variant, cap, value_weight, n_sized
        self._scale = None
        self.keys = self.values = self.counts = self._key_variances = self._variances = None
        # attention: received by the rows, and by the chunk that was read last
        self._given = self._new_given = None

    def read(self, q, k, v):
        """q [rows, d], row r at token r % n of the chunk's n, k [n, d], v [n, dv]: returns [rows,
        dv]."""
        n_old, n = 0 if self.keys is None else len(self.keys), len(k)
        old = self.keys, self.values
        keys, values = (np.concatenate((a, b)) for a, b in zip(old, (k, v))) if n_old else (k, v)
        scores = q @ keys.T
        if n_old:
            scores[:, :n_old] += np.log(self.counts)
        if n_old and self._variant == "variance":
            scores[:, :n_old] += np.square(q).sum(-1, keepdims=True) * self._key_variances / (2 * k.shape[-1])
        token = np.arange(len(q)) % n
        scores[:, n_old:][np.arange(n) > token[:, None]] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        given = p.mean(0)
        self._new_given = given[n_old:]
        if n_old:
            self._given = _PAST * self._given + (1 - _PAST) * given[:n_old]
        return p @ values

    def append(self, k, v):
        """Appends a whole chunk."""
        zeros, given = np.zeros(len(k)), (1 - _PAST) * self._new_given
        new = k, v, np.ones(len(k)), zeros, zeros, given
        names = "keys", "values", "counts", "_key_variances", "_variances", "_given"
        for name, rows in zip(names, new):
            old = getattr(self, name)
            setattr(self, name, rows.copy() if old is None else np.concatenate((old, rows)))
        if self._scale is None and len(self.keys) >= self._n_sized:
            self._scale = self._value_weight / np.square(self.values).sum(-1).mean()
            if self._variant == "spread":
                self._scale = self._value_weight * self.keys.var(0).sum() / self.values.var(0).sum()
        n_merges = len(self.keys) - self._cap
        if n_merges > 0:
            alive = (self._rounds if self._variant == "rounds" else self._one_by_one)(n_merges)
            for name in names:
                setattr(self, name, getattr(self, name)[alive])

    def _costs(self, i, points):
        """Returns the costs [len(i), n] of merging rows i with every row."""
        costs = squared_distances(points[i], points)
        if self._variant == "average":
            costs += self._variances[i, None] + self._variances
        elif self._variant == "ward":
            costs *= self.counts[i, None] * self.counts / (self.counts[i, None] + self.counts)
        elif self._variant == "attention":
            costs *= (_LEAST / self._cap + self._given[i, None] + self._given) ** _POWER
        elif self._variant == "sizes":
            sizes = np.square(self.values).sum(-1)
            costs *= (sizes[i, None] + sizes) * (self._scale / (2 * self._value_weight))
        return costs

    def _points(self):
        return np.concatenate((self.keys, self.values * self._scale ** 0.5), -1)

    def _merge(self, i, j, points):
        """Row i becomes the mean of both, weighted by their counts."""
        share = self.counts[j] / (self.counts[i] + self.counts[j])
        for variances, rows in ((self._key_variances, self.keys), (self._variances, points)):
            apart = np.square(rows[i] - rows[j]).sum()
            variances[i] += share * (variances[j] - variances[i]) + share * (1 - share) * apart
        for rows in (self.keys, self.values, points):
            rows[i] += share * (rows[j] - rows[i])
        self.counts[i] += self.counts[j]
        self._given[i] += self._given[j]

    def _one_by_one(self, n_merges):
        n, points = len(self.keys), self._points()
        alive = np.ones(n, bool)
        costs = self._costs(np.arange(n), points)
        np.fill_diagonal(costs, np.inf)
        nearest, closest = costs.argmin(1), costs.min(1)
        for _ in range(n_merges):
            i = int(closest.argmin())
            i, j = sorted((i, int(nearest[i])))
            self._merge(i, j, points)
            alive[j] = False
            costs[j], costs[:, j], closest[j] = np.inf, np.inf, np.inf
            fresh = np.where(alive, self._costs(np.array([i]), points)[0], np.inf)
            fresh[i] = np.inf
            costs[i], costs[:, i] = fresh, fresh
            lost = np.flatnonzero(alive & ((nearest == i) | (nearest == j) | (np.arange(n) == i)))
            closest[lost], nearest[lost] = costs[lost].min(1), costs[lost].argmin(1)
            nearer = fresh < closest
            closest[nearer], nearest[nearer] = fresh[nearer], i
        return alive

    def _rounds(self, n_merges):
        n, points = len(self.keys), self._points()
        alive = np.ones(n, bool)
        while n_merges:
            costs = squared_distances(points, points)
            costs[~alive], costs[:, ~alive] = np.inf, np.inf
            costs[np.tril_indices(n)] = np.inf
            free = alive.copy()
            # enough: every merge uses two rows, and no two of these pairs share a row
            order = np.argsort(costs, axis=None)[:n_merges * n]
            for i, j in zip(*np.unravel_index(order, costs.shape)):
                if free[i] and free[j] and n_merges and costs[i, j] < np.inf:
                    self._merge(i, j, points)
                    free[i] = free[j] = alive[j] = False
                    n_merges -= 1
        return alive


class VariantReader(Reader):
    """A model whose dictionary layers keep rows by a variant of the rule."""

    def __init__(self, model, variant, n_rows, chunk_len):
        super().__init__(model, "shares", n_rows, chunk_len)
        weight = model.config.pair_rule.value_weight
        self.rows = {layer: [VariantRows(variant, cap, weight, cap // 2 + 1) for cap in caps]
                     for layer, caps in self._caps.items()}

    def _read(self, rows, q, k, v):
        out = rows.read(*(x[0, 0].flatten(0, -2).double().numpy() for x in (q, k, v)))
        return torch.from_numpy(out).float().view(1, 1, q.shape[2], q.shape[3], -1)

    def _after_chunk(self, tokens):
        for layer, heads in self.rows.items():
            for h, head in enumerate(heads):
                head.append(*(x[0, h].double().numpy() for x in tokens[layer]))


def measured(logits, tokens, scored, of_documents):
    """Returns, over the scored tokens but the first, the number that were most probable, or the
    bits."""
    targets = torch.from_numpy(tokens[1:])
    if not of_documents:
        return (logits.argmax(-1) == targets).numpy()[scored[1:]].mean()
    bits = -logits.log_softmax(-1).gather(1, targets[:, None])[:, 0].numpy() / np.log(2)
    return bits[scored[1:]].mean()


def parse_args(arguments):
    parser = make_parser(__doc__, rows=256, sequences=16)
    listed_of(parser, "--variants", VARIANTS)
    parser.add_argument("--data-root", default=DEFAULT_ROOT, help="of documents: folder of the standard library")
    return parser.parse_args(arguments)


def main(arguments=None):
    args = parse_args(arguments)
    if args.config:
        parent, args.model, _ = score.with_config(args.model, args.config)
    exam, label = score.make_exam(args)
    of_documents = isinstance(exam, DocumentExam)
    model, made = load_model(args.model, rule="closest-pair"), exam.sequences(args.length, args.sequences)
    factor, digits, unit = (1, 3, "") if of_documents else (100, 1, "%")
    print(f"{label}, {args.sequences} sequences of {made.tokens.shape[1]} tokens, {args.rows} rows a head, "
          f"{'bits per byte' if of_documents else 'accuracy'}", flush=True)
    first = None
    for variant in args.variants:
        values = []
        for tokens, scored in zip(made.tokens, made.scored):
            reader = VariantReader(model, variant, args.rows, args.chunk)
            logits = reader.logits(torch.from_numpy(tokens[:-1]))
            values.append(factor * measured(logits, tokens, scored, of_documents))
        values = np.array(values)
        first = values if first is None else first
        shown = [mean_text(x, digits, unit) for x in (values, values - first)]
        print(f"{variant}: {shown[0]}, less {args.variants[0]}: {shown[1]}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("variants.py: interrupted")
    except (ConfigError, DataError, TaskError, ValueError, OSError) as error:
        sys.exit(f"variants.py: {error}")
