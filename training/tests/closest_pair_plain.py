"""Reference of closest-pair dictionaries: plain, one head, float64, no batching tricks.

    dictionary = ClosestPair(max_rows=N)
    out = dictionary.read(q, k, v)      # one chunk: q [n, d] (beta in it), k [n, d] unit norm, v [n, dv]; causal
    dictionary.append(k, v)             # after the chunk has attended
"""
import numpy as np


class ClosestPair:
    def __init__(self, max_rows, value_weight=0.5, recent=0, correct_variance=False, merge_variance=0.0):
        """recent: number of newest rows that may not merge. correct_variance: see read. merge_variance: weight of both
        rows' variances in a distance."""
        self.merge_variance = merge_variance
        self.max_rows, self.value_weight, self.recent = max_rows, value_weight, recent
        self.correct_variance = correct_variance
        self.keys = self.values = None
        # variance: mean |key - row|^2 of a row's keys
        self.counts, self.variances = np.zeros(0), np.zeros(0)

    def read(self, q, k, v):
        """softmax over the rows (+ ln count) and the chunk's own keys up to the query.

        correct_variance adds |q|^2 variance / (2 d): the second-order term of ln sum exp(q.k_i)
        over the row's keys, as if they were spread evenly in all directions."""
        n, d = k.shape
        keys = k if self.keys is None else np.concatenate((self.keys, k))
        values = v if self.values is None else np.concatenate((self.values, v))
        scores = q @ keys.T
        rows = len(keys) - n
        scores[:, :rows] += np.log(self.counts)
        if self.correct_variance:
            scores[:, :rows] += (q * q).sum(-1, keepdims=True) * self.variances / (2 * d)
        scores[:, rows:][np.triu(np.ones((n, n), bool), 1)] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True) @ values

    def append(self, k, v):
        """Makes rows of count 1 of the chunk's tokens; then merges closest pairs, one after
        another."""
        self.keys = k.copy() if self.keys is None else np.concatenate((self.keys, k))
        self.values = v.copy() if self.values is None else np.concatenate((self.values, v))
        self.counts = np.concatenate((self.counts, np.ones(len(k))))
        self.variances = np.concatenate((self.variances, np.zeros(len(k))))
        n_merges = len(self.keys) - self.max_rows
        if n_merges <= 0:
            return
        scale = self.value_weight / (self.values ** 2).sum(-1).mean()  # one scale for each chunk
        points = np.concatenate((self.keys, self.values * np.sqrt(scale)), -1)
        distance = ((points[:, None] - points[None]) ** 2).sum(-1)
        distance += self.merge_variance * (self.variances[:, None] + self.variances)
        distance[np.tril_indices(len(points))] = np.inf  # row i with rows of higher index only
        if self.recent:
            distance[-self.recent:], distance[:, -self.recent:] = np.inf, np.inf
        alive = np.ones(len(points), bool)
        for _ in range(n_merges):
            i, j = np.unravel_index(distance.argmin(), distance.shape)  # ties: lower i, then lower j
            self._merge(i, j)
            share = self.counts[j] / (self.counts[i] + self.counts[j])
            points[i] = points[i] * (1 - share) + points[j] * share
            self.counts[i] += self.counts[j]
            alive[j] = False
            distance[j], distance[:, j] = np.inf, np.inf
            fresh = ((points - points[i]) ** 2).sum(-1) + self.merge_variance * (self.variances + self.variances[i])
            after, before = np.isfinite(distance[i]), np.isfinite(distance[:, i])
            distance[i, after], distance[before, i] = fresh[after], fresh[before]
        self.keys, self.values = self.keys[alive], self.values[alive]
        self.counts, self.variances = self.counts[alive], self.variances[alive]

    def _merge(self, i, j):
        """Row i becomes the mean of both rows' tokens (their counts are still the old ones)."""
        a = self.counts[i] / (self.counts[i] + self.counts[j])
        apart = ((self.keys[i] - self.keys[j]) ** 2).sum()
        self.variances[i] = a * self.variances[i] + (1 - a) * self.variances[j] + a * (1 - a) * apart
        for rows in (self.keys, self.values):
            rows[i] = a * rows[i] + (1 - a) * rows[j]


def _check():
    rng = np.random.default_rng(0)
    k = rng.standard_normal((96, 16)); k /= np.linalg.norm(k, axis=-1, keepdims=True)
    q, v = 5 * k[rng.permutation(96)], rng.standard_normal((96, 8))
    d, out = ClosestPair(96), []
    for c in range(0, 96, 32):
        out.append(d.read(q[c:c + 32], k[c:c + 32], v[c:c + 32])); d.append(k[c:c + 32], v[c:c + 32])
    s = q @ k.T; s[np.triu(np.ones((96, 96), bool), 1)] = -np.inf; p = np.exp(s - s.max(-1, keepdims=True))
    # below max_rows it equals full attention, exactly
    assert np.abs(np.concatenate(out) - p / p.sum(-1, keepdims=True) @ v).max() < 1e-12 and (d.counts == 1).all()
    small = ClosestPair(40, recent=8)
    for c in range(0, 96, 32): small.append(k[c:c + 32], v[c:c + 32])
    assert len(small.keys) == 40 and small.counts.sum() == 96 and (small.counts[-8:] == 1).all()
    # the means lose nothing
    assert np.allclose((small.values * small.counts[:, None]).sum(0), v.sum(0))
    # brute force: every merge of the last chunk is the closest pair of the rows at that moment
    x, w = ClosestPair(20), None
    x.append(k[:20], v[:20]); y = (x.keys.copy(), x.values.copy(), x.counts.copy())
    x.append(k[20:30], v[20:30])
    K, V, C = np.concatenate((y[0], k[20:30])), np.concatenate((y[1], v[20:30])), np.concatenate((y[2], np.ones(10)))
    scale = .5 / (V ** 2).sum(-1).mean()
    while len(K) > 20:
        best = min((((K[i] - K[j]) ** 2).sum() + scale * ((V[i] - V[j]) ** 2).sum(), i, j) for i in range(len(K)) for j in range(i + 1, len(K)))
        _, i, j = best; t = C[i] + C[j]
        K[i], V[i], C[i] = (C[i] * K[i] + C[j] * K[j]) / t, (C[i] * V[i] + C[j] * V[j]) / t, t
        K, V, C = np.delete(K, j, 0), np.delete(V, j, 0), np.delete(C, j)
    assert np.allclose(K, x.keys) and np.allclose(V, x.values) and (C == x.counts).all()
    # the variance of a row is that of its keys
    one = ClosestPair(1); one.append(k[:9], v[:9])
    assert np.allclose(one.variances[0], ((k[:9] - k[:9].mean(0)) ** 2).sum(-1).mean())
    print("ok")


if __name__ == "__main__":
    _check()
