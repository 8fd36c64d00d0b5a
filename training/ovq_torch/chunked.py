"""Attention to dictionaries in two passes, without a loop over chunks in autograd.

ovq/dictionary.py and ovq/closest_pair.py, the reference, walk over the chunks: read, update, read. But which slot a
token goes to is a constant to gradients, and given that, all is linear: before chunk c, slot j is

    slot_j(c) = sum of (key, value) over the tokens in j / count_j(c)

So the first pass decides for all chunks which slot every token goes to (`plan_ovq`, `plan_pairs`: no gradients). The
second sums the slots that every chunk reads (`ChunkDictionaries`: one node of the graph, whose gradient is a sum over
the later chunks), and one softmax for many chunks reads them: at position t of chunk c, over the slots with score
q . key_j + ln count_j and the chunk's own keys up to t with score q . key ("Online Vector Quantized Attention", Alonso
et al., eq. 15, 17 and 19). Chunks go in groups, so that the slots of a few chunks are in memory at a time.

Shapes as in ovq/mixers.py: q [batch, n_kv_heads, group, n_tokens, head_dim], unit norm times beta; k [batch, n_kv_heads,
n_tokens, head_dim], unit norm; v [..., value_head_dim]. Z = batch * n_kv_heads; G chunks of a group; L = chunk_len.
"""

import concurrent.futures
import dataclasses

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from ovq import fused
from ovq.closest_pair import ClosestPairRows, merge_pairs
from ovq.config import OvqRules
from ovq.dictionary import assign_chunk, merge_chunk, n_centroids_at, row_bias
from ovq.mixers import attend, ranges_up_to, wide
from ovq_torch.state import Dictionary

# Scores that a group may have: a CPU's fit its cache, a GPU's are enough for all of it to have work.
GROUP_SCORES = {"cpu": 1 << 17, "cuda": 1 << 27}
_NEVER = -1e4  # score of a slot that is not live: no other is within 1e3 of it


@dataclasses.dataclass
class Update:
    """A chunk's update. slot_of [Z, L]: the new slot of each token; if `moved`, [Z, n + L]: of each old slot, then of each
    token. counts [Z, n_after]: the tokens of each slot then."""

    slot_of: torch.Tensor
    counts: torch.Tensor
    moved: bool = False

    def rows(self):
        """slot_of as indices into the slots of all heads, one after another."""
        n_heads, n_after = self.counts.shape
        return (self.slot_of + n_after * torch.arange(n_heads, device=self.slot_of.device)[:, None]).flatten()

    def add(self, sums, tokens):
        """Returns the sums after the chunk: sums [Z, n, D], tokens [Z, L, D] -> [Z, n_after, D]."""
        after = sums.new_zeros(*self.counts.shape, sums.shape[-1])
        if self.moved:
            tokens = torch.cat((sums, tokens), 1)
        else:
            after[:, :sums.shape[1]] = sums
        after.view(-1, sums.shape[-1]).index_add_(0, self.rows(), tokens.flatten(0, 1))
        return after

    def add_gradients(self, after, n):
        """Returns the gradients of the n sums before the chunk and of its tokens, from that of the sums after it."""
        parts = after.flatten(0, 1)[self.rows()].unflatten(0, (len(after), -1))
        return parts.split((n, parts.shape[1] - n), 1) if self.moved else (after[:, :n], parts)


class ChunkDictionaries(Function):
    """Keys and values that each chunk of a group reads: its dictionary's means, then its own.

    sums [Z, n, d + dv] and counts [Z, n] before the group, k [Z, G, L, d], v [Z, G, L, dv], and an Update for each chunk,
    for the last one perhaps none. Returns keys [Z, G, m + L, d] and values, of which a chunk with n live slots has them in
    columns m - n to m and zeros before; and the sums after the group's updates."""

    @staticmethod
    def forward(ctx, sums, counts, k, v, updates):
        m = max([counts.shape[1]] + [update.counts.shape[1] for update in updates[:k.shape[1] - 1]])
        keys, values = (F.pad(x, (0, 0, m, 0)) for x in (k, v))
        dims, before = (k.shape[-1], v.shape[-1]), []
        for c in range(k.shape[1]):
            n = sums.shape[1]
            before.append(counts)
            means = (sums / counts.unsqueeze(-1)).split(dims, -1)
            keys[:, c, m - n:m], values[:, c, m - n:m] = means
            if c < len(updates):
                sums = updates[c].add(sums, torch.cat((k[:, c], v[:, c]), -1).to(sums.dtype))
                counts = updates[c].counts
        ctx.updates, ctx.before, ctx.m, ctx.dims = updates, before, m, dims
        return keys, values, sums

    @staticmethod
    @once_differentiable
    def backward(ctx, keys, values, after):
        k, v = keys[:, :, ctx.m:].clone(), values[:, :, ctx.m:].clone()
        for c in range(len(ctx.before) - 1, -1, -1):
            n = ctx.before[c].shape[1]
            if c < len(ctx.updates):
                after, tokens = ctx.updates[c].add_gradients(after, n)
                own_k, own_v = tokens.split(ctx.dims, -1)
                k[:, c] += own_k
                v[:, c] += own_v
            live = slice(ctx.m - n, ctx.m)
            read = torch.cat((keys[:, c, live], values[:, c, live]), -1).to(after.dtype)
            after = after + read / ctx.before[c].unsqueeze(-1)
        return after, None, k, v, None


def _read(q, keys, values, bias):
    """softmax(q keys^T + bias) values: q [Z, G, group, Lq, d], the newest Lq queries of each chunk, keys [Z, G, m + L, d],
    bias [Z, G, m]. A query reads all of the m slots and its chunk's keys up to its own."""
    group, n_queries = q.shape[2:4]
    n_keys = keys.shape[2]
    ranges = ranges_up_to(n_keys - n_queries + 1, n_queries, q.device).repeat(1, group)
    bias = F.pad(bias, (0, n_keys - bias.shape[-1]))
    return attend(q.flatten(2, 3), keys, values, ranges, bias).unflatten(2, (group, n_queries))


def _read_group(q, k, v, sums, counts, updates, weighs_counts, variance_scale):
    """Returns the group's outputs [Z, G, group, Lq, dv] and the sums after it."""
    keys, values, after = ChunkDictionaries.apply(sums, counts, k, v, updates)
    m = keys.shape[2] - k.shape[2]
    bias = sums.new_full((*k.shape[:2], m), _NEVER)
    for c, live in enumerate(([counts] + [update.counts for update in updates])[:k.shape[1]]):
        n = live.shape[1]
        bias[:, c, m - n:] = row_bias(keys[:, c, m - n:m], live, variance_scale) if weighs_counts else 0
    return _read(q, keys, values, bias), after


def _group_sizes(n_chunks, first, most):
    """Yields the sizes of groups of at most `most` chunks, of which the first is chunk `first` of its sequence. While
    dictionaries grow fast, groups are small: their chunks have columns for the slots of the last."""
    begin = 0
    while begin < n_chunks:
        yield min(n_chunks - begin, max(1, min(most, first + begin)))
        begin += max(1, min(most, first + begin))


def attend_in_chunks(q, k, v, memory, n_tokens, chunk_len, plan, weighs_counts=True, recompute=False,
                     variance_scale=None):
    """Reads and updates a Dictionary; returns (out [batch, n_kv_heads, group, n_tokens, dv], the Dictionary after).

    n_tokens: the tokens before these. plan(chunks of keys [Z, C, L, d], of values, memory, merged): the updates of
    the chunks and what becomes of memory.sizes; merged: the tokens in the slots. recompute: keep only the sums between
    groups for the backward pass. variance_scale [n_kv_heads]: as in ovq/dictionary.py's row_bias."""
    batch, n_heads, n_new = k.shape[:3]
    n_pending = memory.keys.shape[2]
    if n_pending:
        k, v = torch.cat((memory.keys, k), 2), torch.cat((memory.values, v), 2)
    n_all, merged = k.shape[2], n_tokens - n_pending
    n_merged = (n_all - 1) // chunk_len  # chunks that are complete and have a token after them
    pending = tuple(x[:, :, n_merged * chunk_len:].clone() for x in (k, v))
    n_chunks = n_merged + 1
    n_fill = n_chunks * chunk_len - n_all if n_chunks > 1 else 0
    if n_chunks > 1 and n_pending + n_fill:
        q = F.pad(q, (0, 0, n_pending, n_fill))
        k, v = (F.pad(x, (0, 0, 0, n_fill)) for x in (k, v))
    k, v = (x.flatten(0, 1).unflatten(1, (n_chunks, -1)) for x in (k, v))
    q = q.flatten(0, 1).unflatten(2, (n_chunks, -1)).transpose(1, 2)
    updates, sizes = plan(k[:, :n_merged].detach(), v[:, :n_merged].detach(), memory, merged)
    counts = memory.counts.flatten(0, 1)
    if variance_scale is not None:
        variance_scale = variance_scale.repeat(batch)  # [Z]
    sums, outs = memory.slots.flatten(0, 1) * counts.unsqueeze(-1), []
    n_columns = k.shape[2] + (updates[-1].counts if updates else counts).shape[1]
    n_scores = q[:, 0, :, :, 0].numel() * n_columns  # of the last chunk, which has most
    most = GROUP_SCORES["cuda" if k.is_cuda else "cpu"] // n_scores
    lengths, begin = list(_group_sizes(n_chunks, merged // chunk_len, most)), 0
    # split, not slices: the gradient of a slice is a tensor of the whole's size
    for n_group, *parts in zip(lengths, *(x.split(lengths, 1) for x in (q, k, v))):
        of_group, begin = updates[begin:begin + n_group], begin + n_group
        arguments = (*parts, sums, counts, of_group, weighs_counts, variance_scale)
        if recompute and torch.is_grad_enabled():
            out, sums = checkpoint(_read_group, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            out, sums = _read_group(*arguments)
        counts = of_group[-1].counts if of_group else counts
        outs.append(out)
    out = torch.cat(outs, 1).transpose(1, 2).flatten(2, 3).unflatten(0, (batch, n_heads))
    if out.shape[3] > n_new:
        out = out[..., n_pending:n_pending + n_new, :]
    if not updates:
        return out, dataclasses.replace(memory, keys=pending[0], values=pending[1])
    slots = (sums / counts.unsqueeze(-1)).unflatten(0, (batch, n_heads))
    return out, Dictionary(slots, counts.unflatten(0, (batch, n_heads)), *pending, memory.max_centroids, sizes)


def empty_dictionary(k, v, max_centroids):
    """Returns the Dictionary before the first token, for keys like k and values like v."""
    return Dictionary(wide(k).new_zeros(*k.shape[:2], 0, k.shape[-1] + v.shape[-1]),
                      torch.zeros(*k.shape[:2], 0, dtype=torch.int64, device=k.device), k[:, :, :0], v[:, :, :0],
                      max_centroids)


@torch.no_grad()
def plan_ovq(rules, keys, values, memory, merged):
    """The paper's rule, by ovq/dictionary.py's own steps on keys alone."""
    del values
    slots, counts = memory.slots.detach()[..., :keys.shape[-1]], memory.counts
    keys, updates, end = wide(keys).unflatten(0, counts.shape[:2]), [], merged
    for chunk in keys.unbind(2):
        end += chunk.shape[2]
        target = (min(end, memory.max_centroids) if rules.min_state_size
                  else n_centroids_at(end, memory.max_centroids))
        n_new = target - slots.shape[2]
        slot_of = assign_chunk(chunk, slots, n_new)
        slots, counts = merge_chunk(slots, counts, chunk, slot_of, n_new)
        updates.append(Update(slot_of.flatten(0, 1), counts.flatten(0, 1)))
    return updates, None


def _pair_rows(memory, heads, rule, merged, dim):
    """Yields ovq/closest_pair.py's rows of every head, as far as they are known."""
    plain = memory.keys.dtype == torch.float64 or fused.compiled() is None
    merge = merge_pairs if plain else fused.merge_pairs
    slots = memory.slots.detach().flatten(0, 1).double().cpu().numpy()
    counts = memory.counts.flatten(0, 1).cpu().numpy()
    for head in range(heads):
        rows = ClosestPairRows(dim, slots.shape[-1] - dim, memory.max_centroids, 1.0, rule, merge)
        rows.keys, rows.values, rows.counts = slots[head, :, :dim], slots[head, :, dim:], counts[head]
        rows.n_tokens = merged
        size = float("nan") if memory.sizes is None else float(memory.sizes.flatten()[head])
        rows.size = None if np.isnan(size) else size
        yield rows


@torch.no_grad()
def plan_pairs(rule, keys, values, memory, merged):
    """Closest pairs, chosen by ovq/closest_pair.py on the CPU, head by head, on as many threads as PyTorch has."""
    n_heads, n_chunks, _, dim = keys.shape
    if not n_chunks:
        return [], memory.sizes
    heads = list(_pair_rows(memory, n_heads, rule, merged, dim))
    keys, values = (x.double().cpu().numpy() for x in (keys, values))

    def walk(head, *chunks):
        return [(head.append(key, value), head.counts) for key, value in zip(*chunks)]

    with concurrent.futures.ThreadPoolExecutor(torch.get_num_threads()) as pool:
        made = list(pool.map(walk, heads, keys, values))
    updates = [Update(*(torch.from_numpy(np.stack(x)).to(memory.counts.device) for x in zip(*of_heads)), moved=True)
               for of_heads in zip(*made)]
    sizes = [float("nan") if head.size is None else head.size for head in heads]
    return updates, torch.tensor(sizes, dtype=torch.float64).view(memory.counts.shape[:2])


def ovq_attention(q, k, v, chunk_len, max_centroids, rules=OvqRules(), recompute=False):
    """ovq/dictionary.py's ovq_attention from the first token on, by the paper's rule; equal to it but for rounding."""
    memory = empty_dictionary(k, v, max_centroids)
    return attend_in_chunks(q, k, v, memory, 0, chunk_len, lambda *chunks: plan_ovq(rules, *chunks),
                            not rules.counts_for_rates_only, recompute)[0]
