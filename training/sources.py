"""Sources of training data and of progress measurements: the byte corpus, a task, or conversations.

A source gives batches (inputs, targets, weights), each [contexts, length]; weights are each
target's share of the loss. In shorter contexts, targets are NO_TARGET and weights 0. The state is a
few integers, so that a resumed run sees what an unbroken one would have seen."""

import dataclasses
import hashlib
import itertools
import random as random_module

import numpy as np
import torch

from agent_conversations import AgentConversation
from conversations import Conversation, make_sample
from ovq.measure import token_bits
from schedule import LENGTH_STEP

# Seed of the task sequences on which progress is measured. Training sequences are seeded by pairs
# of numbers below 2^32, which numpy joins to one number below 2^64: this seed must be above those.
HELD_OUT_SEED = 1 << 64
NO_TARGET = -100  # the target that PyTorch's cross entropy ignores


@dataclasses.dataclass(frozen=True)
class Share:
    """The contexts of a step that one worker computes; only targets with a weight need logits.

    inputs [contexts, length]; places, indices into the flattened inputs, targets and weights, shares of the step's loss,
    [n_places]."""
    inputs: torch.Tensor
    places: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def of(cls, inputs, targets, weights, device):
        places = np.flatnonzero(weights)
        # Few shapes, see LENGTH_STEP: the places added have weight 0.
        places = np.pad(places, (0, -len(places) % LENGTH_STEP))
        chosen = targets.flatten()[places], weights.flatten()[places]
        chosen[1][np.count_nonzero(weights):] = 0
        sides = [torch.from_numpy(side) for side in (inputs, places, *chosen)]
        if device != "cpu":  # nobody waits for a copy from pinned memory
            sides = [side.pin_memory().to(device, non_blocking=True) for side in sides]
        return cls(*sides)


class CorpusSource:
    """A corpus; progress in bits per byte of what it holds out.

    corpus: Corpus, Documents or Texts. Progress is measured on contexts of held_out_length."""

    metric = "held_out_bpb"
    _SAMPLE_TOKENS = 32768

    def __init__(self, corpus, held_out_length, seed):
        self.fingerprint = corpus.fingerprint
        self._corpus, self._sampler = corpus, corpus.sampler(seed)
        self._sample = corpus.held_out_sample(held_out_length,
                                              max(1, self._SAMPLE_TOKENS // held_out_length))

    def check(self, length, progress):  # the corpus does not change during a run
        """Raises the error that next would raise for contexts of this length."""
        self._corpus.sampler(0).next(length, 1)

    def next(self, length, batch, progress):
        inputs, targets = self._sampler.next(length, batch)
        return inputs, targets, np.ones(targets.shape, np.float32)

    def measure(self, model, workers):
        """Measures a few contexts at a time: all of them at once would need four times a training
        step's memory."""
        inputs, targets = self._sample
        bits = workers.map(lambda i: token_bits(model, inputs[i:i + 4], targets[i:i + 4]),
                           range(0, len(inputs), 4))
        return float(np.sum(np.concatenate(list(bits)), dtype=np.float64)) / self._corpus.n_bytes(targets)

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

    def check(self, length, progress):
        """Raises the error that next would raise for contexts of this length, from this progress to the run's end: the
        easiest task has the fewest distinct keys, the full one the longest."""
        for seed in range(self._CHECKED):
            for at in (progress, 1.0):
                self._make(length, 1, at, np.random.default_rng(seed))

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


class ConversationSource:
    """Scripted conversations; progress is the share of held-out answers that greedy decoding gets right.

    A row of a batch is one conversation with as many turns as fit; the share `agents` of them has the shape
    that coding agents give to theirs. What the model itself says has weight 1 in the loss, all else
    unlearned_weight. Progress is measured on conversations of at most held_out_length tokens."""

    metric = "held_out_exact"
    _SAMPLE_CONTEXTS = 64
    _CHECKED = 4  # conversations of each kind

    def __init__(self, tokenizer, held_out_length, seed, unlearned_weight, agents=0.0):
        self._tokenizer, self._seed, self._unlearned_weight = tokenizer, seed, unlearned_weight
        self._agents, self._n_batches = agents, 0
        self._sample = [self._make(i, held_out_length, True) for i in range(self._SAMPLE_CONTEXTS)]
        shown = [self._make(i, 512).ids for i in range(16)]
        self.fingerprint = f"conversations {hashlib.sha256(repr(shown).encode()).hexdigest()[:16]}"

    def _make(self, seed, length, held_out=False):
        is_agents = random_module.Random(f"{seed} kind").random() < self._agents
        return make_sample(seed, length, self._tokenizer, held_out, AgentConversation if is_agents else Conversation)

    def check(self, length, progress):  # conversations do not change during a run
        """Raises the error that next would raise for contexts of this length."""
        shares = {Conversation: 1 - self._agents, AgentConversation: self._agents}
        for kind, seed in itertools.product((kind for kind, share in shares.items() if share), range(self._CHECKED)):
            make_sample(f"check {seed}", length, self._tokenizer, kind=kind)

    def next(self, length, batch, progress):
        made = [self._make(f"{self._seed} {self._n_batches} {i}", length) for i in range(batch)]
        self._n_batches += 1
        inputs, targets = (np.zeros((batch, length), np.int64), np.full((batch, length), NO_TARGET))
        weights = np.zeros((batch, length), np.float32)
        for row, sample in enumerate(made):
            n = len(sample.ids) - 1
            inputs[row, :n], targets[row, :n] = sample.ids[:-1], sample.ids[1:]
            weights[row, :n] = np.where(sample.learned[1:], 1.0, self._unlearned_weight)
        return inputs, targets, weights

    def measure(self, model, workers):
        right = list(workers.map(lambda sample: answers_right(model, sample), self._sample))
        return float(np.mean(list(itertools.chain.from_iterable(right))))

    def state(self):
        return {"n_batches": self._n_batches}

    def restore(self, state):
        self._n_batches = state["n_batches"]


_PAD_MULTIPLE = 256  # for oneDNN, see LENGTH_STEP in schedule.py


@torch.no_grad()
def answers_right(model, sample):
    """Returns, for every answer of a Sample, whether greedy decoding would give exactly it.

    Given the conversation before, all tokens of an answer are then the most probable ones."""
    ids = np.array(sample.ids)
    n = len(ids) - 1
    padded = np.zeros((1, -(-n // _PAD_MULTIPLE) * _PAD_MULTIPLE), np.int64)
    padded[0, :n] = ids[:-1]
    device = next(model.parameters()).device
    likeliest = model(torch.from_numpy(padded).to(device))[0, :n].argmax(-1).cpu().numpy()
    return [bool((likeliest[begin - 1:end - 1] == ids[begin:end]).all()) for begin, end, _ in sample.answers]


@torch.no_grad()
def predicted_right(model, tokens, scored, max_centroids=None):
    """Returns, for every scored token of [batch, length], in row order, whether it is the most
    probable: [n_scored] bool."""
    device = next(model.parameters()).device
    logits = model(torch.from_numpy(tokens[:, :-1]).to(device), max_centroids)
    likeliest = logits.argmax(-1).cpu().numpy()
    return (likeliest == tokens[:, 1:])[scored[:, 1:]]
