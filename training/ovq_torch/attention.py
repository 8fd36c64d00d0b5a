"""Attention modules with a state: y, state = module(x, state); y, state = module.step(x, state).

All are ovq/model.py's Attention: queries q = beta unit(W_q x), keys k = unit(W_k x), values v = W_v x, a score is q . k,
the result W_o of the heads' outputs. They differ in what a query reads. Their parameters have the native format's names
(docs/model-format.md), so that a layer's part of a model folder is a module's state_dict.

For q, k, v in the modules see ovq/mixers.py for shapes; x and y are [batch, n_tokens, hidden_size]."""

import functools

import torch
import torch.nn.functional as F

from ovq import kvm, mixers
from ovq.config import ConfigError, PairRule, check_max_centroids, config_from_dict, share_of
from ovq.model import Attention
from ovq_torch import chunked
from ovq_torch.sequences import each_masked, each_sequence
from ovq_torch.state import AttentionState, Codes, KeyValueMeans, Tokens, map_tensors

_rope_tables = functools.lru_cache(maxsize=8)(mixers.rope_tables)  # the layers of a model share them
_PIECE = 256  # tokens that VQ reads before it moves them into its sums


class Mixer:
    """A causal mixer of x [batch, n_tokens, hidden_size]; `run(x, state, ...)` is the subclass's."""

    def forward(self, x, state=None, *, cu_seqlens=None, mask=None, **options):
        """Returns (y, state) of x and what came before it; state None: nothing.

        cu_seqlens [n_sequences + 1]: x [1, n_tokens, hidden_size] is several sequences, one after another; mask [batch,
        n_tokens]: false for tokens that are not there. With either every sequence begins and ends here, so that there is
        no state: the second result is None. Under autocast x becomes of its dtype: products run in that, all else in
        float32."""
        on, dtype = ((torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()) if x.device.type == "cpu" else
                     (torch.is_autocast_enabled(), torch.get_autocast_gpu_dtype()))
        if on:
            with torch.autocast(x.device.type, enabled=False):
                return self.forward(x.to(dtype), state, cu_seqlens=cu_seqlens, mask=mask, **options)
        if cu_seqlens is None and mask is None:
            if state is not None:
                check_batch(state, x)
            return self.run(x, state, **options)
        if state is not None:
            raise ValueError("state: sequences of unequal lengths have none in common; leave out cu_seqlens and mask")
        split, where = (each_sequence, cu_seqlens) if mask is None else (each_masked, mask)
        return split(lambda part: self.run(part, None, **options)[0], x, where), None

    def step(self, x, state=None, **options):
        """One token: x [batch, hidden_size] -> (y [batch, hidden_size], state); equal to forward on all tokens at once but
        for rounding."""
        y, state = self.forward(x.unsqueeze(1), state, **options)
        return y.squeeze(1), state


def check_batch(state, x):
    """Raises an error if a state has not as many sequences as x."""
    batches = set()
    map_tensors(state, lambda part: batches.add(len(part)))
    if batches != {len(x)}:
        raise ValueError(f"state: of {batches.pop()} sequences, but there are {len(x)}")


class SoftmaxMixer(Mixer, Attention):
    """Base class: projections and state around `attend`, which is the subclass's.

    attn_scale, floor_scale: growth of queries with the position, but in a window (mixers.query_growth)."""

    kind = ""  # of layer_types

    def __init__(self, hidden_size, num_heads, head_dim=None, *, num_kv_heads=None, value_head_dim=None,
                 token_shift=False, **fields):
        head_dim = head_dim or hidden_size // num_heads
        raw = {"model_type": "ovq_hybrid", "vocab_size": 1, "hidden_size": hidden_size, "num_hidden_layers": 1,
               "layer_types": [self.kind], "intermediate_size": 0, "num_attention_heads": num_heads,
               "head_dim": head_dim, "num_key_value_heads": num_kv_heads or num_heads,
               "value_head_dim": value_head_dim or head_dim, "token_shift": token_shift, **fields}
        self._build(config_from_dict(raw), 0)

    @classmethod
    def of_layer(cls, config, i, recompute_chunks=False):
        """Makes the module of layer i of a Config."""
        module = cls.__new__(cls)
        module._build(config, i, recompute_chunks)
        return module

    def _build(self, config, i, recompute_chunks=False):
        Attention.__init__(self, config, config.layer_types[i], config.shares_of(i), "none", recompute_chunks)

    def run(self, x, state=None, max_centroids=None):
        """forward for sequences of one length; max_centroids: slots of a new state, None: the module's own."""
        n_before, n_new = (state.n_tokens if state else 0), x.shape[1]
        if not n_new:
            raise ValueError("x: no tokens")
        shifted = self.config.token_shift and state is not None
        read = torch.cat((state.last, x), 1) if shifted else x
        rope, first = None, n_before - shifted
        if self.layer_type == "sliding_attention":
            rope = _rope_tables(read.shape[1], self.config.head_dim, self.config.rope_theta, x.device, first)
        q, k, v = (part[:, :, -n_new:] for part in self._heads(read, rope, first))
        q = q.unflatten(1, (-1, self.config.group_size))  # query head h reads key/value head h // group
        memories = state.memories if state else self.new_memories(k, v, max_centroids)
        parts = [part.chunk(len(memories), 1) for part in (q, k, v)]
        betas = self.beta.chunk(len(memories))
        outs, memories = zip(*(self.attend(*heads, memory, n_before, x, beta)
                               for *heads, memory, beta in zip(*parts, memories, betas)))
        y = self.o_proj(torch.cat(outs, 1).flatten(1, 2).transpose(1, 2).flatten(2))
        return y, AttentionState(n_before + n_new, memories, x[:, -1:].clone() if self.config.token_shift else None)

    def new_memories(self, k, v, max_centroids):
        """Returns the memories before the first token, as a tuple (AttentionState.memories)."""
        raise NotImplementedError

    def attend(self, q, k, v, memory, n_before, x, beta):
        """Returns (the heads' outputs [batch, n_kv_heads, group, n_tokens, value_head_dim], the memory after them).
        beta [n_kv_heads group]: the norms of these heads' queries."""
        raise NotImplementedError


def _exact(q, k, v):
    """Causal attention of the newest tokens' queries over all keys; all at once by PyTorch's own kernel on a GPU."""
    if mixers.has_kernel(q) and q.shape[3] == k.shape[2]:
        keys, values = (x.repeat_interleave(q.shape[2], 1) for x in (k, v))
        out = F.scaled_dot_product_attention(q.flatten(1, 2), keys, values, is_causal=True, scale=1.0)
        return out.unflatten(1, q.shape[1:3])
    return mixers.full_attention(q, k, v)


def _newest(x, n):
    """The newest n tokens of x [batch, heads, n_tokens, dim], as memory of their own."""
    return x[:, :, max(0, x.shape[2] - n):].clone()


class FullAttention(SoftmaxMixer):
    """Causal attention without position encoding: y_t = sum_s<=t softmax(q_t . k_s) v_s. The state has every token."""

    kind = "full_attention"

    def new_memories(self, k, v, max_centroids):
        return (Tokens(k[:, :, :0], v[:, :, :0]),)

    def attend(self, q, k, v, memory, n_before, x, beta):
        memory = Tokens(torch.cat((memory.keys, k), 2), torch.cat((memory.values, v), 2))
        return _exact(q, memory.keys, memory.values), memory


class SlidingAttention(FullAttention):
    """Causal attention to the newest `sliding_window` tokens, the query's own included, with RoPE (rotate-half, angle
    t theta^(-2i/d)). The state has sliding_window - 1 tokens."""

    kind = "sliding_attention"

    def __init__(self, hidden_size, num_heads, head_dim=None, *, sliding_window=512, rope_theta=10000.0, **fields):
        super().__init__(hidden_size, num_heads, head_dim, sliding_window=sliding_window, rope_theta=rope_theta, **fields)

    def attend(self, q, k, v, memory, n_before, x, beta):
        window, n_old, n_new = self.config.sliding_window, memory.keys.shape[2], k.shape[2]
        k, v = torch.cat((memory.keys, k), 2), torch.cat((memory.values, v), 2)
        if n_new <= window and n_old:
            ends = torch.arange(n_old + 1, n_old + n_new + 1, dtype=torch.int32, device=k.device)
            ranges = torch.stack(((ends - window).clamp(min=0), ends)).repeat(1, q.shape[2])
            out = mixers.attend(q.flatten(2, 3), k, v, ranges).unflatten(2, q.shape[2:4])
        else:
            out = mixers.sliding_attention(F.pad(q, (0, 0, n_old, 0)), k, v, window)[..., n_old:, :]
        return out, Tokens(_newest(k, window - 1), _newest(v, window - 1))


def check_rules(rules):
    """Raises an error that names the flag if OvqRules make a dictionary something else than sums of its tokens."""
    for name in ("normalize_centroids", "delta_rule"):
        if getattr(rules, name):
            raise ConfigError(f"ovq.{name}: only ovq/dictionary.py has this rule, chunk by chunk")


class OVQAttention(SoftmaxMixer):
    """Online vector-quantized attention ("Online Vector Quantized Attention", Alonso et al.).

    Each key/value head has a dictionary of slots: a mean key D_j, a mean value and a count c_j of tokens. A query reads
    the slots as they were before its chunk, and its own chunk up to itself, in one softmax (eq. 15):

        y_t = softmax(q . D_j + ln c_j | q . k_s) (mean values | v_s)

    At a chunk's end there are n(t) = floor(t N / (t + N)) slots (eq. 17), N = max_centroids: the keys least like their
    nearest slot become slots, the others move theirs by (k - D_j) / c_j (eq. 19), which makes it their mean. Which
    slot a key goes to is a constant to gradients; they reach every key and value through the means. The state has at
    most N slots and chunk_size tokens. All chunks go side by side (ovq_torch/chunked.py), as in ovq/dictionary.py but for
    rounding. min_state_size: n(t) = min(t, N); counts_for_rates_only: scores without ln c_j (flags of section `ovq`); variance:
    factor of the variance of a slot's keys in its score, constant to gradients (row_bias in ovq/dictionary.py)."""

    kind = "ovq_attention"
    update = "paper"

    def __init__(self, hidden_size, num_heads, head_dim=None, *, chunk_size=128, max_centroids=2048, num_kv_heads=None,
                 value_head_dim=None, token_shift=False, attn_scale=0.0, floor_scale=8192, **rules):
        super().__init__(hidden_size, num_heads, head_dim, num_kv_heads=num_kv_heads, value_head_dim=value_head_dim,
                         token_shift=token_shift, attn_scale=attn_scale, floor_scale=floor_scale, ovq={"chunk_size": chunk_size, "max_centroids": max_centroids,
                                                       "update": self.update, **rules})

    def _build(self, config, i, recompute_chunks=False):
        check_rules(config.ovq_rules)
        super()._build(config, i, recompute_chunks)

    def new_memories(self, k, v, max_centroids):
        if max_centroids is None:
            max_centroids = self.config.max_centroids
        check_max_centroids(max_centroids, self.config.chunk_size)
        heads = zip(k.chunk(len(self.shares), 1), v.chunk(len(self.shares), 1), self.shares)
        return tuple(chunked.empty_dictionary(keys, values, share_of(max_centroids, share))
                     for keys, values, share in heads)

    def plan(self, *chunks):
        return chunked.plan_ovq(self.config.ovq_rules, *chunks)

    def attend(self, q, k, v, memory, n_before, x, beta):
        return chunked.attend_in_chunks(q, k, v, memory, n_before, self.config.chunk_size, self.plan,
                                        not self.config.ovq_rules.counts_for_rates_only, self.recompute_chunks,
                                        self.variance_scale(beta))


class ClosestPairAttention(OVQAttention):
    """OVQ attention whose tokens all become slots until there are max_centroids, N; then the closest pairs merge at chunk
    ends, by the distance |key - key|^2 + w / V |value - value|^2 + lambda (s + s), V the mean |value|^2, s = 1 - |slot's key|^2
    the variance of a slot's keys, w = value_weight, lambda = merge_variance (the rule, exactly: ovq/closest_pair.py). Up to N
    tokens it is exact. pinned_tokens: the first ones never merge; recent_tokens: the newest do not merge yet."""

    update = "closest-pair"

    def __init__(self, hidden_size, num_heads, head_dim=None, *, value_weight=PairRule.value_weight, merge_variance=0.0,
                 pinned_tokens=0, recent_tokens=0, **fields):
        super().__init__(hidden_size, num_heads, head_dim, value_weight=value_weight, merge_variance=merge_variance,
                         pinned_tokens=pinned_tokens, recent_tokens=recent_tokens, **fields)

    def plan(self, *chunks):
        return chunked.plan_pairs(self.config.pair_rule, *chunks)


class VQAttention(SoftmaxMixer):
    """Causal attention to keys that are replaced by the nearest of codebook_size trained codes (eq. 3 of the OVQ paper):
    y_t = sum_s<=t softmax(q_t . code(k_s)) v_s. Codes learn by DiVeQ's gradient (Vali et al. 2025, `quantize` in
    ovq/mixers.py) and have unit norm: call `normalize_codes()` after each step of the optimizer.

    The state has, for each code, its tokens' count c_j and sum of values: a query reads past tokens as one key with score
    q . code_j + ln c_j and their mean value, which is the same. In training, without a state, every key has a score of
    its own, because gradients reach each key; through a state they reach values alone."""

    kind = "vq_attention"

    def __init__(self, hidden_size, num_heads, head_dim=None, *, codebook_size=512, **fields):
        super().__init__(hidden_size, num_heads, head_dim, vq={"codebook_size": codebook_size}, **fields)

    @torch.no_grad()
    def normalize_codes(self):
        self.codebook.copy_(mixers.unit_norm(self.codebook))

    def new_memories(self, k, v, max_centroids):
        shape = (*k.shape[:2], self.config.codebook_size)
        return (Codes(mixers.wide(v).new_zeros(*shape, v.shape[-1]), torch.zeros(shape, dtype=torch.int64,
                                                                                 device=v.device)),)

    def attend(self, q, k, v, memory, n_before, x, beta):
        if n_before == 0 and torch.is_grad_enabled():
            out = _exact(q, mixers.quantize(k, self.codebook).to(k.dtype), v)
            return out, self._counted(memory, k, v)
        outs = []
        for own_q, own_k, own_v in zip(*(part.split(_PIECE, -2) for part in (q, k, v))):
            outs.append(self._read(own_q, mixers.quantize(own_k, self.codebook).to(k.dtype), own_v, memory))
            memory = self._counted(memory, own_k, own_v)
        return torch.cat(outs, -2), memory

    def _read(self, q, codes, v, memory):
        means = memory.sums / memory.counts.clamp(min=1).unsqueeze(-1)
        scores = torch.where(memory.counts > 0, memory.counts.to(means.dtype).log(), means.new_tensor(-1e4))
        keys = torch.cat((self.codebook.to(codes.dtype).expand(len(codes), -1, -1, -1), codes), 2)
        ranges = mixers.ranges_up_to(scores.shape[-1] + 1, q.shape[3], q.device).repeat(1, q.shape[2])
        out = mixers.attend(q.flatten(2, 3), keys, torch.cat((means.to(v.dtype), v), 2), ranges,
                            F.pad(scores, (0, v.shape[2])))
        return out.unflatten(2, q.shape[2:4])

    def _counted(self, memory, k, v):
        nearest = mixers.nearest_codes(mixers.wide(k), mixers.wide(self.codebook))
        index = nearest.unsqueeze(-1).expand(*nearest.shape, v.shape[-1])
        return Codes(memory.sums.scatter_add(2, index, mixers.wide(v)),
                     memory.counts.scatter_add(2, nearest, torch.ones_like(nearest)))


class KVMAttention(SoftmaxMixer):
    """Key-Value Means: a block sliding window of n_bswa_chunks chunks of chunk_len tokens and a table of merged keys in
    one softmax, as in ovq/kvm.py; settings are the fields of section `kvm` of config.json. A token that leaves the window
    becomes a row or is added to its most similar one; a row's key is LayerNorm(sum of keys), its value the direction
    of the sum of values times the first one's length. The state has the rows and at most n_bswa_chunks + 1 chunks."""

    kind = "kvm_attention"

    def __init__(self, hidden_size, num_heads, head_dim=None, *, value_head_dim=None, token_shift=False, attn_scale=0.0,
                 floor_scale=8192, **settings):
        super().__init__(hidden_size, num_heads, head_dim, value_head_dim=value_head_dim, token_shift=token_shift,
                         attn_scale=attn_scale, floor_scale=floor_scale, kvm=settings)

    def new_memories(self, k, v, max_centroids):
        settings = self.config.kvm
        return (KeyValueMeans(None, k[:, :, :0], v[:, :, :0], v[:, :, :0, 0] if settings.has_gates else None,
                              settings.max_centroids if max_centroids is None else max_centroids),)

    def attend(self, q, k, v, memory, n_before, x, beta):
        settings, gates, n_old = self.config.kvm, None, memory.keys.shape[2]
        if settings.has_gates:
            gates = kvm.token_gates(mixers.wide(self.key_weighting(x))).transpose(1, 2)
            gates = torch.cat((memory.gates, gates), 2)
        temps = (self.front_head_temp, self.state_head_temp) if settings.use_head_temps else ()
        weights = kvm.Weights(self.ln_s_k.weight, self.ln_s_k.bias, *temps)
        k, v = torch.cat((memory.keys, k), 2), torch.cat((memory.values, v), 2)
        out, rows, n_taken = self._read_chunks(q, k, v, gates, weights, n_before - n_old, memory)
        kept = slice(n_taken, None)
        return out, KeyValueMeans(rows, k[:, :, kept].clone(), v[:, :, kept].clone(),
                                  None if gates is None else gates[:, :, kept].clone(), memory.max_rows)

    def _read_chunks(self, q, k, v, gates, weights, first, memory):
        """k, v and gates begin at position `first`, a chunk's; q are the newest. Returns (outputs, rows, how many of
        these tokens are in the rows)."""
        settings, chunk_len = self.config.kvm, self.config.kvm.chunk_len
        keys = k if weights.window_temp is None else (k * weights.window_temp[:, None, None]).to(k.dtype)
        rows, outs, n_taken = memory.rows and kvm.Rows(*memory.rows), [], 0
        begin, end = k.shape[2] - q.shape[3], k.shape[2]
        while begin < end:
            chunk = begin // chunk_len  # from `first` on
            oldest = max(0, chunk - settings.n_bswa_chunks + 1)
            for c in range(n_taken, oldest):
                left = [part if part is None else part[:, :, c * chunk_len:(c + 1) * chunk_len]
                        for part in (k, v, gates)]
                tokens, = kvm.tokens_of_chunks(*left, weights, settings)
                position = first + (c + settings.n_bswa_chunks) * chunk_len
                rows = self._taken(tokens, rows, position, weights, memory.max_rows)
            n_taken, until = max(n_taken, oldest), min(end, (chunk + 1) * chunk_len)
            window, own = slice(oldest * chunk_len, until), q[..., begin - end + q.shape[3]:until - end + q.shape[3], :]
            if rows is None:
                outs.append(mixers.full_attention(own, keys[:, :, window], v[:, :, window]))
            else:
                outs.append(kvm.read_rows(own, keys[:, :, window], v[:, :, window], rows, weights, settings))
            begin = until
        return torch.cat(outs, -2), rows and tuple(rows), n_taken * chunk_len

    def _taken(self, tokens, rows, position, weights, max_rows):
        """The rows after a chunk's tokens, which the chunk at `position` reads."""
        settings = self.config.kvm
        if rows is None:
            return kvm.first_rows(tokens, weights, settings, max_rows)
        n_old = rows.keys.shape[2]
        n_new = min(kvm.n_rows_at(position, n_old, settings, max_rows) - n_old, settings.chunk_len)
        return kvm.updated_rows(tokens, rows, n_new, weights, settings)
