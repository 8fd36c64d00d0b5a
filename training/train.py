"""Trains the model of a recipe on its task or corpus; writes checkpoints, resumes, draws the curve.

A recipe is a JSON file: `config` is the model's config.json, `task` the fields of a task of
tasks.py or {"name": "python_files"} or {"name": "python_documents"}, the two forms of the byte
corpus (without it: python_files), or {"name": "texts"}, texts in tokens of their own (texts.py), or
{"name": "conversations"}, the scripted ones of conversations.py,
whose `tokenizer` is a path relative to the recipe's folder and `agents` the share that has the shape of coding
agents' (agent_conversations.py). `training` values for the options below, `score` values for those
of score.py, which reproduce.py passes on. Options on the command line override the recipe's.

It is one file, because a run is made, resumed and checked by its options, which stand at the beginning."""

import argparse
import concurrent.futures
import contextlib
import csv
import json
import math
import os
import signal
import sys
import threading
import time

import numpy as np
import torch
import torch.nn.functional as F

from chat.bpe import load_tokenizer
from checkpoints import CHECKPOINT, read_checkpoint
from data import DEFAULT_ROOT, Corpus, DataError, Documents
from devices import device_name
from ovq.config import (ConfigError, MIXER_NAMES, OVQ_UPDATES, check_max_centroids, config_from_dict, config_to_dict,
                        read_json_object, with_changes)
from ovq.dictionary import ABLATIONS
from ovq.model import DTYPES, LAYER_ABLATIONS, OvqModel, load_model
from ovq_torch.causal_lm import Decoder, check_layers
from muon import Muon
import plots
from schedule import LENGTH_STEP, learning_rate, parse_phases, phase_at
from sources import NO_TARGET, ConversationSource, CorpusSource, Share, TaskSource
from tasks import TaskError, json_fields, make_task, read_fields
from texts import Texts

FIRST_SIGN_SECONDS = 3
_TABLES = ("model.embed_tokens.weight", "lm_head.weight")  # one row for each token
CORPORA = {"python_files": Corpus, "python_documents": Documents, "texts": Texts}
# The history has a row every --log-steps; held_out (the source defines it) every --eval-steps.
CURVE_COLUMNS = ("step", "tokens", "seconds", "context_length", "max_centroids",
                 "train_bits_per_token", "held_out")


def load_recipe(path):
    recipe = read_json_object(path)
    for section, content in recipe.items():
        if not isinstance(content, dict):
            raise ValueError(f"{path}: {section}: not a JSON object")
        if section not in ("config", "task", "training", "score"):
            raise ValueError(f"{path}: unknown section {section!r}")
    if "config" not in recipe:
        raise ValueError(f"{path}: no section 'config'")
    return recipe


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--recipe", required=True, help="JSON file, see above; recipes/ has those used")
    add("--run", required=True, help="folder for checkpoints, curve and log")
    add("--mixer", choices=MIXER_NAMES.values(), help="instead of the recipe's ovq_attention layers; all else "
        "stays, so that models can be compared")
    add("--config", type=json_fields, default={}, metavar="JSON", help="fields in place of those of the recipe's "
        "config, those of a section one by one, before --mixer: {\"ovq\": {\"max_centroids\": 512}}")
    add("--ablation", choices=(*ABLATIONS, *LAYER_ABLATIONS), default="none",
        help="a dictionary rule of OVQ replaced, as in section 4.4 of the paper; whole_update: Lattice without its "
        "orthogonal update; exact_keys: Transformer-VQ without a codebook")
    add("--token-shift", action="store_true", help="attention layers learn by how much q, k and v, channel by "
        "channel, are those of the token before: the config's token_shift")
    add("--data-root", default=DEFAULT_ROOT, help="folder of the standard library (byte corpus), or of texts with "
        "their tokenizer.json (texts)")
    add("--steps", type=int, default=0, help="length of the run in steps")
    add("--last-step", type=int, help="end there, though the schedule of --steps goes on: for weights that are averaged "
        "with others (export.py --mean-with), which takes the place of a slow end")
    add("--minutes", type=float, default=0, help="length of the run in minutes, if not 0: the "
        "schedule follows the clock in place of --steps, for machines that are shared")
    add("--batch-tokens", type=int, default=4096,
        help="tokens in a step, but never less than one context a worker")
    add("--workers", type=int, help="threads that share a step's contexts; each runs its operations on "
        "OMP_NUM_THREADS threads. Default: 2 on a CPU, 1 on a GPU. With more than 2, gradients are summed in "
        "any order, so that no run equals another to the bit")
    add("--phases", default="512:0.37,1024:0.13,2048:0.1,4096:0.13,8192:0.1,16384:0.17",
        help="[SHORTEST-]LENGTH:SHARE[:CENTROIDS],...: context lengths and their shares of the "
        "run, in order; with SHORTEST every step draws its length, LENGTH or a multiple of "
        f"{LENGTH_STEP} less; a phase without CENTROIDS has the config's max_centroids")
    add("--advance-at", type=float, help="share of the targets, each by its weight in the loss, that the steps since the "
        "last line must predict right for a phase, but the last, to end early; those after it share the time gained")
    add("--task", type=json_fields, default={}, help="JSON: fields in place of the recipe's task's")
    add("--variety", type=float, help="task: recall: share of a training sequence that asks; "
        "functions: draw 1 to this many for every example; default: as the task says")
    add("--widen", type=float, help="task: share of the run, as --phases count it, over which training sequences go from "
        "the easiest (recall: keys and values of three tokens; functions: constants) to the "
        "task's; default: they are the task's at once")
    add("--unscored-weight", type=float, default=0.05,
        help="task: share in the loss of a token that is not scored; a scored one has 1. Conversations: "
        "of a token that the model does not say itself")
    add("--held-out-length", type=int, default=512, help="length that progress is measured at")
    add("--lr", type=float, default=3e-3, help="peak learning rate")
    add("--beta-lr-scale", type=float, default=5.0,
        help="learning rate of the attention's beta relative to --lr")
    add("--adam-beta2", type=float, default=0.95)
    add("--optimizer", choices=("adamw", "muon"), default="adamw", help="of the layers' matrices; muon "
        "learns from fewer tokens (muon.py); all else has AdamW")
    add("--warmup-steps", type=int, default=100, help="over which the learning rate rises to --lr; 0: none")
    add("--weight-decay", type=float, default=0.1)
    add("--grad-clip", type=float, default=1.0)
    add("--recompute-chunks", action="store_true", help="OVQ: keep one dictionary a chunk for the "
        "backward pass and compute the rest again: less memory for long contexts, a third slower")
    add("--init", help="model folder or checkpoint.pt whose weights to start from, of the same "
        "shapes; relative to the recipe's folder, and {mixer} in it stands for the mixer's "
        "short name, ovq without --mixer. Codebooks that they lack are sampled from the keys of a batch, "
        "token shifts are 0; functions may be of other sizes: numbers and identifiers that were not "
        "there are drawn like those that were")
    add("--seed", type=int, default=0)
    add("--device", type=device_name, default="cpu", help="cpu, or cuda: a GPU, which computes all chunks of a sequence side by "
        "side (ovq_torch)")
    add("--compute-dtype", choices=("bfloat16", "float32"), help="dtype of the matrix products; "
        "weights are always float32. Default: bfloat16 where the device is fast in it, else float32")
    add("--log-steps", type=int, default=20)
    add("--eval-steps", type=int, default=200)
    add("--checkpoint-minutes", type=float, default=3.0)
    add("--resume", action="store_true",
        help="continue the run in --run from its last checkpoint, if it has one; a run that ended stays as it is")
    return parser


# Options whose values must be above 0, and those that may be 0.
_POSITIVE = ("last_step", "batch_tokens", "workers", "held_out_length", "grad_clip", "log_steps", "eval_steps")
_NOT_NEGATIVE = ("steps", "minutes", "warmup_steps", "lr", "beta_lr_scale", "weight_decay", "unscored_weight",
                 "checkpoint_minutes")
_MAY_BE_INFINITE = ("grad_clip", "checkpoint_minutes")


def check_numbers(args):
    """Raises ValueError, which names the option, for a number with which a run would fail later, or never end."""
    for name in (*_POSITIVE, *_NOT_NEGATIVE):
        value = getattr(args, name)
        fits = value is None or value > 0 or value == 0 and name in _NOT_NEGATIVE
        if not fits:
            wrong = "not positive" if name in _POSITIVE else "neither positive nor 0"
            raise ValueError(f"--{name.replace('_', '-')}: {value} is {wrong}")
        if value == math.inf and name not in _MAY_BE_INFINITE:
            raise ValueError(f"--{name.replace('_', '-')}: {value} is not finite")
    if args.advance_at is not None and not 0 < args.advance_at <= 1:
        raise ValueError(f"--advance-at: {args.advance_at} is not above 0 and at most 1")
    if not args.steps and not args.minutes:
        raise ValueError("one of --steps and --minutes is needed")


def parse_args():
    """Returns (args, recipe); the recipe's training section sets the options' defaults."""
    parser = make_parser()
    known = vars(parser.parse_known_args()[0])
    path = known["recipe"]
    recipe = load_recipe(path)
    defaults = recipe.get("training", {})
    for name in defaults:
        if name in ("recipe", "run", "resume", "task") or name not in known:
            raise ValueError(f"{path}: training: {name!r} is no option of train.py")
    # put before the command line's own flags, so that those override them and both are checked
    # alike
    flags = [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
             for name, value in defaults.items() if value is not False]
    args = parser.parse_args(flags + sys.argv[1:])
    if args.task:
        recipe["task"] = {**recipe.get("task", {}), **args.task}
    check_numbers(args)
    args.compute_dtype = args.compute_dtype or fast_dtype(args.device)
    args.workers = args.workers or (2 if args.device == "cpu" else 1)
    return args, recipe


def fast_dtype(device):
    """Returns the fast dtype of matrix products: without AVX-512 oneDNN has no bfloat16 on a CPU.
    """
    if device == "cpu":
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return "bfloat16" if "avx512bw" in file.read() else "float32"
    return "bfloat16"


def reference_blas():
    """Returns the path of the plain BLAS if that is the one that PyTorch has loaded, else None."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        paths = {line.split()[-1] for line in file}
    return next((path for path in sorted(paths) if "/blas/libblas.so" in path), None)


def make_config(recipe, mixer, token_shift=False, changes=None):
    raw = with_changes(recipe["config"], changes or {})
    if token_shift:
        raw["token_shift"] = True
    update = {kind: name for name, kind in MIXER_NAMES.items()}.get(mixer)
    if update in OVQ_UPDATES:  # the server's name for OVQ's layers with this update
        raw["ovq"] = {**raw.get("ovq", {}), "update": update}
    elif mixer and "layer_types" in raw:  # if they are missing, config_from_dict reports the error
        raw["layer_types"] = [mixer if kind == "ovq_attention" else kind
                              for kind in raw["layer_types"]]
    return config_from_dict(raw)


def make_model(config, args):
    """Makes the model: on a GPU with all chunks side by side, as far as ovq_torch has its layers and rules.

    On a CPU the loop over chunks is as fast or faster: it computes no columns of slots that a chunk does not have yet."""
    dtype = DTYPES[args.compute_dtype]
    if args.device.startswith("cuda") and args.ablation == "none":
        with contextlib.suppress(ConfigError):
            check_layers(config)
            return Decoder(config, dtype, args.recompute_chunks)
    return OvqModel(config, dtype, args.ablation, args.recompute_chunks)


def make_source(recipe, args, config):
    fields = recipe.get("task", {"name": "python_files"})
    for name in ("variety", "widen"):
        if getattr(args, name) is not None and fields.get("name") in ("conversations", *CORPORA):
            raise ValueError(f"--{name}: expected a task that has it, not {fields['name']}")
    if fields.get("name") == "conversations":
        return make_conversation_source(fields, args, config)
    is_corpus = fields.get("name") in tuple(CORPORA)  # whatever the name is
    if is_corpus and len(fields) > 1:
        raise ValueError(f"task: {fields['name']} has no further fields, not {fields}")
    corpus = CORPORA[fields["name"]](args.data_root) if is_corpus else None
    data = corpus or make_task(fields)
    if data.vocab_size > config.vocab_size:
        raise ValueError(f"vocab_size: {config.vocab_size}, but the task needs {data.vocab_size}")
    if corpus:
        return CorpusSource(corpus, args.held_out_length, args.seed)
    if args.variety is not None and not 0 < args.variety < math.inf:
        raise ValueError(f"--variety: {args.variety} is not {'finite' if args.variety == math.inf else 'positive'}")
    if args.widen is not None and not 0 < args.widen <= 1:
        raise ValueError(f"--widen: {args.widen} is not above 0 and at most 1")
    return TaskSource(data, args.held_out_length, args.seed, args.variety, args.widen,
                      args.unscored_weight)


def make_conversation_source(fields, args, config):
    if not {"name", "tokenizer"} <= set(fields) <= {"name", "tokenizer", "agents"}:
        raise ValueError(f"task: conversations has the further fields tokenizer and, if it should, agents, not {fields}")
    agents = fields.get("agents", 0)
    if not isinstance(agents, (int, float)) or not 0 <= agents <= 1:
        raise ValueError(f"task: agents: {agents!r} is no share from 0 to 1")
    if not isinstance(fields["tokenizer"], str):
        raise ValueError(f"task: tokenizer: {fields['tokenizer']!r} is no path")
    tokenizer = load_tokenizer(os.path.join(os.path.dirname(args.recipe), fields["tokenizer"]))
    if tokenizer.size > config.vocab_size:
        raise ValueError(f"vocab_size: {config.vocab_size}, but the tokenizer needs {tokenizer.size}")
    return ConversationSource(tokenizer, args.held_out_length, args.seed, args.unscored_weight, agents)


def token_rows(table, old, new, random):
    """Converts an embedding of FunctionTask `old`'s tokens to `new`'s, which may have more or fewer
    of each kind.

    Tokens of both keep their rows. The others are drawn from the distribution of the rows of their
    kind, channel by channel. table: [old.vocab_size, width]; random: a torch.Generator of the CPU.
    """
    rows, begin = [], 0
    for kind, n_old in old.tokens_by_kind.items():
        known, n_more = table[begin:begin + n_old], new.tokens_by_kind[kind] - n_old
        rows.append(known[:new.tokens_by_kind[kind]])
        if n_more > 0:
            deviation, mean = torch.std_mean(known, 0, correction=0)
            drawn = torch.randn(n_more, table.shape[1], generator=random).to(table.device)
            rows.append(mean + deviation * drawn)
        begin += n_old
    return torch.cat(rows)


def load_initial(model, args, task):
    """Loads the weights of --init; returns True if they lack the codebooks that this model has.

    task: its fields. Token shifts that the weights lack keep this model's initial value, no shift.
    If the sizes of functions differ, tokens are converted by token_rows."""
    mixer = {kind: name for name, kind in MIXER_NAMES.items()}[args.mixer or "ovq_attention"]
    path = os.path.join(os.path.dirname(args.recipe), args.init.replace("{mixer}", mixer))
    own = model.state_dict()
    try:
        if os.path.isdir(path):
            weights, their_task = load_model(path).state_dict(), read_fields(path)
        else:
            saved = read_checkpoint(path, ("model", "task"))
            weights, their_task = saved["model"], saved["task"]
        if their_task != task and all((fields or {}).get("name") == "linear_icl" for fields in (their_task, task)):
            random = torch.Generator().manual_seed(args.seed)
            for name in _TABLES:
                if name in weights:
                    weights[name] = token_rows(weights[name], make_task(their_task), make_task(task), random)
        lacking = {name: own[name] for name in own
                   if name.endswith(("codebook", "_shift")) and name not in weights}
        model.load_state_dict({**weights, **lacking})
    except RuntimeError as error:
        raise ValueError(f"--init: {path} has no weights of this model: {error}") from error
    return any(name.endswith("codebook") for name in lacking)


def make_optimizer(model, args):
    """Makes the optimizer: weight decay on matrices only; beta, whose natural scale is 8, learns
    faster.

    Codes and Lattice's first slots are positions, not weights, so they do not decay."""
    matrices, tables, others, betas = [], [], [], []
    for name, parameter in model.named_parameters():
        if name.endswith("beta"):
            betas.append(parameter)
        elif parameter.dim() < 2 or name.endswith(("codebook", "initial_state")):
            others.append(parameter)
        elif parameter.dim() > 2 or name in _TABLES:
            tables.append(parameter)
        else:
            matrices.append(parameter)
    groups = [{"params": matrices, "weight_decay": args.weight_decay, "lr_scale": 1.0,
               "orthogonal": args.optimizer == "muon"},
              {"params": tables, "weight_decay": args.weight_decay, "lr_scale": 1.0},
              {"params": others, "weight_decay": 0.0, "lr_scale": 1.0},
              {"params": betas, "weight_decay": 0.0, "lr_scale": args.beta_lr_scale}]
    return Muon(groups, DTYPES[args.compute_dtype], lr=args.lr, betas=(0.9, args.adam_beta2), foreach=True)


class Trainer:
    """One run: its model, its position in the data and the schedule, and its history."""

    def __init__(self, args, recipe):
        self.args, self.phases, self.task = args, parse_phases(args.phases), recipe.get("task")
        torch.manual_seed(args.seed)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        self.position_from = (0.0, 0.0)  # position and clock where a phase last ended early
        self.recent = []  # (loss in bits per token, share predicted right, end of the phase) of the steps since the last line
        self.config = make_config(recipe, args.mixer, args.token_shift, args.config)
        self.model = make_model(self.config, args).to(args.device)
        self.source = make_source(recipe, args, self.config)
        self._check_phases()
        if args.init and load_initial(self.model, args, self.task):
            self.model.sample_codebooks(torch.cat([share.inputs for share in self._batch(self.phases[0].length)[0]]))
        self.optimizer = make_optimizer(self.model, args)
        self.history = []  # rows of CURVE_COLUMNS
        self.workers = concurrent.futures.ThreadPoolExecutor(args.workers)

    def _check_phases(self):
        """Raises now what would end the run when a phase begins."""
        begin = 0.0
        for phase in self.phases:
            self.source.check(phase.shortest or phase.length, begin)
            self.source.check(phase.length, begin)
            if phase.max_centroids is not None:
                check_max_centroids(phase.max_centroids, self.config.chunk_size)
            begin = phase.end

    @property
    def ended(self):
        return self.progress >= 1 or self.args.last_step is not None and self.step >= self.args.last_step

    @property
    def clock(self):
        """Returns the seconds or the steps that the schedule follows."""
        return self.seconds if self.args.minutes else self.step

    @property
    def length(self):
        return 60 * self.args.minutes or self.args.steps

    @property
    def progress(self):
        return self.clock / self.length

    @property
    def position(self):
        """Where the phases stand, from 0 to 1: the progress, unless a phase ended early (--advance-at)."""
        position, begin = self.position_from
        return position + (1 - position) * (self.clock - begin) / (self.length - begin)

    def _batch(self, length):
        """Returns the next step's contexts, a Share for each worker, and how many targets there are."""
        n_contexts = max(self.args.workers, self.args.batch_tokens // length)
        inputs, targets, weights = self.source.next(length, n_contexts, self.position)
        parts = (np.array_split(side, self.args.workers) for side in (inputs, targets, weights / weights.sum()))
        return [Share.of(*part, self.args.device) for part in zip(*parts)], int((targets != NO_TARGET).sum())

    def _accumulate(self, share, max_centroids):
        """Adds the gradients of some of a step's contexts; returns their shares of its loss and of what it predicted right,
        float64 tensors: their numbers would have to be waited for on a GPU."""
        logits = self.model(share.inputs, max_centroids, share.places)
        losses = F.cross_entropy(logits, share.targets, reduction="none")
        loss = losses.dot(share.weights.to(losses.dtype))
        loss.backward()
        right = loss.new_zeros(())
        if self.args.advance_at is not None:
            right = (logits.argmax(-1) == share.targets).to(losses.dtype).dot(share.weights.to(losses.dtype))
        return torch.stack([loss.detach(), right]).double()

    def _all_gradients(self, shares, max_centroids):
        """Each worker computes a share of the contexts, and they synchronize once for each step.

        On a shared machine this is several times faster than threads inside each operation, which
        wait for one another some thousand times in a step."""
        sums = [self.workers.submit(self._accumulate, share, max_centroids) for share in shares]
        loss, right = sum(one.result() for one in sums)
        return loss / math.log(2), right

    def train_step(self):
        """One optimizer step; returns the weighted mean loss in bits per token and the share predicted right, tensors, and
        the end of its phase."""
        phase = phase_at(self.phases, self.position)
        shares, n_targets = self._batch(phase.length_at(self.args.seed, self.step))
        rate = learning_rate(self.args.lr, self.progress, self.step, self.args.warmup_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]
        bits, right = self._all_gradients(shares, phase.max_centroids)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.model.normalize_codebooks()
        self.step += 1
        self.tokens += n_targets
        return bits, right, phase.end

    def advance(self, right):
        """Ends the phase, if all steps since the last line are its own and predicted the share `right`."""
        end = phase_at(self.phases, self.position).end
        of_phase = all(step[2] == end for step in self.recent)
        # The shares of a step's targets are rounded: together they are not quite 1.
        enough = self.args.advance_at is not None and right >= self.args.advance_at - 1e-4
        if of_phase and enough and end < self.phases[-1].end:
            self.position_from = (end, self.clock)
            print(f"step {self.step}  {100 * right:.1f}% predicted right: the next phase begins", flush=True)

    def check_finite(self):
        """Raises once a loss since the last line, or a weight, is not finite: no step mends that, and no checkpoint gets it."""
        losses = [float(bits) for bits, _, _ in self.recent]
        wrong = [f"the loss is {bits}" for bits in losses if not math.isfinite(bits)]
        wrong += [f"{name} is not finite" for name, weights in self.model.named_parameters() if not weights.isfinite().all()]
        if wrong:
            raise ValueError(f"step {self.step}: {wrong[0]}; try a lower --lr or --grad-clip: --resume goes on from the last "
                             "checkpoint of --run, if there is one")

    def save(self):
        """Replaces the checkpoint atomically: after a crash the old or the new one exists."""
        self.check_finite()
        path = os.path.join(self.args.run, CHECKPOINT)
        torch.save({"config": config_to_dict(self.config), "model": self.model.state_dict(),
                    "optimizer": self.optimizer.state_dict(), "source": self.source.state(),
                    "step": self.step, "tokens": self.tokens, "seconds": self.seconds, "position_from": self.position_from,
                    "recent": self.recent,
                    "history": self.history, "fingerprint": self.source.fingerprint,
                    "task": self.task, "args": vars(self.args)}, path + ".partial")
        os.replace(path + ".partial", path)
        self.write_curve()

    def restore(self):
        path = os.path.join(self.args.run, CHECKPOINT)
        # The optimizer leaves its counts of steps where they were loaded, and would wait for each of them on a GPU.
        saved = read_checkpoint(path, ("config", "model", "optimizer", "source", "step", "tokens", "seconds", "history",
                                       "fingerprint", "args"))
        if saved["fingerprint"] != self.source.fingerprint:
            raise ValueError(f"{path}: trained on {saved['fingerprint']}, "
                             f"not on {self.source.fingerprint}")
        if saved["config"] != config_to_dict(self.config):
            raise ValueError(f"{path}: its model differs from that of {self.args.recipe}")
        for name in ("ablation", "variety", "widen", "unscored_weight", "optimizer", "advance_at"):
            own, theirs = getattr(self.args, name), saved["args"].get(name)
            if own != theirs:
                raise ValueError(f"{path}: trained with --{name.replace('_', '-')} {theirs}, "
                                 f"not {own}")
        self.model.load_state_dict(saved["model"])
        self._restore_optimizer(saved["optimizer"])
        self.source.restore(saved["source"])
        self.step, self.tokens, self.seconds = saved["step"], saved["tokens"], saved["seconds"]
        self.history = saved["history"]
        for name in ("position_from", "recent"):  # older checkpoints have none
            setattr(self, name, saved.get(name, getattr(self, name)))
        if self.position_from[1] and bool(saved["args"]["minutes"]) != bool(self.args.minutes):
            clocks = ("--minutes", "--steps") if self.args.minutes else ("--steps", "--minutes")
            raise ValueError(f"{path}: a phase ended early, and {clocks[0]} cannot go on with the clock of {clocks[1]}")

    def _restore_optimizer(self, state):
        """Loads what the optimizer knows of the weights; its options are this run's."""
        options = [{name: value for name, value in group.items() if name != "params"} for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state)
        for group, own in zip(self.optimizer.param_groups, options):
            group.update(own)

    def write_curve(self):
        path = os.path.join(self.args.run, "curve.csv")
        with open(path + ".partial", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow((*CURVE_COLUMNS[:-1], self.source.metric))
            writer.writerows([f"{value:.4f}" if isinstance(value, float) else value
                              for value in row] for row in self.history)
        os.replace(path + ".partial", path)
        if plots.available():
            plots.plot_learning_curve(
                os.path.join(self.args.run, "curve.png"),
                [(row[1], row[5]) for row in self.history],
                [(row[1], row[6]) for row in self.history if row[6] is not None],
                self.source.metric)

    def report(self, bits, right, tokens_per_second):
        """Adds a history row and prints progress; every --eval-steps with the held-out sample."""
        due = self.step % self.args.eval_steps < self.args.log_steps or self.ended
        held_out = self.source.measure(self.model, self.workers) if due else None
        phase = phase_at(self.phases, min(self.position, 1 - 1e-9))
        max_centroids = phase.max_centroids or self.config.max_centroids
        self.history.append((self.step, self.tokens, round(self.seconds, 1), phase.length,
                             max_centroids, bits, held_out))
        eta = self.seconds * (1 / self.progress - 1) / 60
        text = "" if self.args.advance_at is None else f"  {100 * right:.1f}% right"
        text += "" if held_out is None else f"  {self.source.metric} {held_out:.4f}"
        print(f"step {self.step}  {100 * self.progress:.1f}%  context {phase.length}  "
              f"{bits:.4f} bits/token  {tokens_per_second:.0f} tokens/s  "
              f"{self.tokens / 1e6:.2f}M tokens  {eta:.0f} min left{text}", flush=True)

    def first_sign(self, seconds):
        """Prints a line soon after the start, as the first report may be minutes away."""
        left = self.seconds * (1 / self.progress - 1) / 60 if self.progress > 0 else math.inf
        print(f"step {self.step} after {seconds:.0f} s, about {left:.0f} min left; a line every "
              f"{self.args.log_steps} steps", flush=True)

    def run(self):
        clock = saved_at = begin = time.monotonic()
        told = False
        recent_tokens, recent_seconds = self.tokens, self.seconds
        while not self.ended:
            with interrupted_afterwards():
                self.recent.append(self.train_step())
            now = time.monotonic()
            self.seconds, clock = self.seconds + now - clock, now
            if not told and now - begin >= FIRST_SIGN_SECONDS:
                self.first_sign(now - begin)
                told = True
            if self.step % self.args.log_steps == 0 or self.ended:
                self.check_finite()
                speed = (self.tokens - recent_tokens) / (self.seconds - recent_seconds)
                bits, right = (float(sum(step[i] for step in self.recent) / len(self.recent)) for i in (0, 1))
                self.report(bits, right, speed)
                recent_tokens, recent_seconds = self.tokens, self.seconds
                if self.step % self.args.log_steps == 0:
                    self.advance(right)
                    self.recent = []
            if now - saved_at > 60 * self.args.checkpoint_minutes:
                self.save()
                saved_at = now
        self.save()


@contextlib.contextmanager
def interrupted_afterwards():
    """Lets SIGINT interrupt behind the block; a second one interrupts at once.

    An exception amid a step could leave a lock of the workers' pool held, for which the program would
    wait at its end for good. A program that ignores SIGINT goes on ignoring it."""
    came = []

    def note(*_):
        came.append(True)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    noted = (threading.current_thread() is threading.main_thread()
             and signal.getsignal(signal.SIGINT) == signal.default_int_handler)
    if noted:
        signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if noted:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


def main():
    args, recipe = parse_args()
    checkpoint = os.path.join(args.run, CHECKPOINT)
    if os.path.exists(checkpoint) and not args.resume:
        raise ValueError(f"{checkpoint} exists: pass --resume to continue it, or another --run")
    os.makedirs(args.run, exist_ok=True)
    trainer = Trainer(args, recipe)
    if os.path.exists(checkpoint):
        trainer.restore()
    else:
        with open(os.path.join(args.run, "args.json"), "w", encoding="utf-8") as file:
            json.dump(vars(args), file, indent=2)
    n_parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    print(f"{n_parameters} parameters, {trainer.source.fingerprint}, "
          f"{torch.get_num_threads()} threads", flush=True)
    blas = reference_blas() if args.device == "cpu" else None
    if blas:
        print(f"products in float32 use {blas}, which is some twenty times slower than OpenBLAS: "
              "apt-get install libopenblas0-pthread", flush=True)
    if not plots.available():
        print(f"{plots.MISSING}: there will be a curve.csv, but no curve.png", flush=True)
    trainer.run()


if __name__ == "__main__":
    try:
        main()
    except (ConfigError, DataError, TaskError, ValueError, OSError) as error:
        sys.exit(f"train.py: {error}")
    except KeyboardInterrupt:
        print("train.py: interrupted; --resume goes on from the last checkpoint of --run, if there "
              "is one", file=sys.stderr)
        sys.exit(130)
