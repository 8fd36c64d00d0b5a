"""Sources of training data and of progress measurements: the byte corpus, or a task.

A source gives batches (inputs, targets, weights), each [contexts, length]; weights are each
target's share of the loss. In shorter contexts, targets are NO_TARGET and weights 0. The state is a
few integers, so that a resumed run sees what an unbroken one would have seen."""

import numpy as np
import torch

from ovq.measure import bits_per_byte, token_bits

# Seed of the task sequences on which progress is measured. Training sequences are seeded by pairs
# of numbers below 2^32, which numpy joins to one number below 2^64: this seed must be above those.
HELD_OUT_SEED = 1 << 64
NO_TARGET = -100  # the target that PyTorch's cross entropy ignores


class CorpusSource:
    """The standard library's bytes; progress in bits per byte of held-out modules.

    corpus: Corpus or Documents. Progress is measured on contexts of held_out_length."""

    metric = "held_out_bpb"
    _SAMPLE_TOKENS = 32768

    def __init__(self, corpus, held_out_length, seed):
        self.fingerprint = corpus.fingerprint
        self._corpus, self._sampler = corpus, corpus.sampler(seed)
        self._sample = corpus.held_out_sample(held_out_length,
                                              max(1, self._SAMPLE_TOKENS // held_out_length))

    def check(self, length):
        """Raises the error that next would raise for contexts of this length."""
        self._corpus.sampler(0).next(length, 1)

    def next(self, length, batch, progress):  # the corpus does not change during a run
        inputs, targets = self._sampler.next(length, batch)
        return inputs, targets, np.ones(targets.shape, np.float32)

    def measure(self, model, workers):
        """Measures a few contexts at a time: all of them at once would need four times a training
        step's memory."""
        inputs, targets = self._sample
        bits = workers.map(lambda i: token_bits(model, inputs[i:i + 4], targets[i:i + 4]),
                           range(0, len(inputs), 4))
        return bits_per_byte(np.concatenate(list(bits)), targets)

    def state(self):
        return self._sampler.state()

    def restore(self, state):
        self._sampler.restore(state)


class TaskSource:
    """Fresh sequences of a task; progress is the share of scored tokens predicted right.

    variety: field of which training sequences have more than the task, see its for_training; None:
    none. widen: the share of the run over which the task grows from its easiest form to its full
    one, see its narrowed; None: it has its full form from the start. unscored_weight: weight in the
    loss of a token that is not scored; scored ones have 1. Progress is measured on the full task,
    at held_out_length."""

    metric = "held_out_accuracy"
    _SAMPLE_CONTEXTS = 32
    _CHECKED = 16  # tasks of random sizes, of which half are the task's own

    def __init__(self, task, held_out_length, seed, variety=None, widen=None, unscored_weight=1.0):
        self.fingerprint = repr(task)
        self._task, self._seed = task, seed
        self._variety, self._widen, self._unscored_weight = variety, widen, unscored_weight
        self._n_batches = 0
        self._sample = task.sequences(held_out_length, self._SAMPLE_CONTEXTS,
                                      np.random.default_rng(HELD_OUT_SEED))

    def _make(self, length, batch, progress, random):
        task = self._task.for_training(length, self._variety, random)
        if self._widen is not None:
            task = task.narrowed(min(progress / self._widen, 1.0), random)
        return task.sequences(length, batch, random)

    def check(self, length):
        """Raises the error that next would raise for contexts of this length."""
        for seed in range(self._CHECKED):
            self._make(length, 1, 1.0, np.random.default_rng(seed))

    def next(self, length, batch, progress):
        random = np.random.default_rng((self._seed, self._n_batches))
        made = self._make(length, batch, progress, random)
        self._n_batches += 1
        weights = np.where(made.scored, 1.0, self._unscored_weight).astype(np.float32)
        # One shape whatever the sequences' sizes: see LENGTH_STEP. No token sees a later one.
        fill = ((0, 0), (0, length - made.tokens.shape[1]))
        return (np.pad(made.tokens[:, :-1], fill),
                np.pad(made.tokens[:, 1:], fill, constant_values=NO_TARGET),
                np.pad(weights[:, 1:], fill))

    def measure(self, model, workers):
        tokens, scored = self._sample.tokens, self._sample.scored
        right = workers.map(lambda i: predicted_right(model, tokens[i:i + 4], scored[i:i + 4]),
                            range(0, len(tokens), 4))
        return float(np.concatenate(list(right)).mean())

    def state(self):
        return {"n_batches": self._n_batches}

    def restore(self, state):
        self._n_batches = state["n_batches"]


@torch.no_grad()
def predicted_right(model, tokens, scored, max_centroids=None):
    """Returns, for every scored token of [batch, length], in row order, whether it is the most
    probable: [n_scored] bool."""
    device = next(model.parameters()).device
    logits = model(torch.from_numpy(tokens[:, :-1]).to(device), max_centroids)
    likeliest = logits.argmax(-1).cpu().numpy()
    return (likeliest == tokens[:, 1:])[scored[:, 1:]]
