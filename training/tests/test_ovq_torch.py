"""ovq_torch against ovq/, its reference, in float64: outputs, gradients, and calls that go on from a state.

A result is a sum of at most a few hundred products of numbers near 1, so that two orders of summation differ by some 1e-14
of the largest element; gradients add some hundreds of these. CLOSE leaves a factor of ten."""

import io
import os
import random
import re
import tempfile
import unittest
from unittest import mock

import torch
import torch.nn.functional as F

import support
from ovq import mixers
from ovq.closest_pair import closest_pair_attention
from ovq.config import PairRule, OvqRules, config_from_dict
from ovq.dictionary import ovq_attention
from ovq.model import OvqModel, load_model
from ovq_torch import (ClosestPairAttention, Decoder, FullAttention, GatedDeltaNet, KVMAttention, OVQAttention,
                       SlidingAttention, VQAttention, chunked)
from ovq_torch.state import map_tensors
from test_mixers import random_qkv

CLOSE = 1e-12
SIZES = {"hidden_size": 12, "num_heads": 4, "head_dim": 6}
GROUPED = {**SIZES, "num_kv_heads": 2, "value_head_dim": 5}
# a module of every kind, whose sequences of 50 tokens have several chunks, windows or merges
MODULES = {
    "full": lambda: FullAttention(**GROUPED),
    "sliding": lambda: SlidingAttention(**GROUPED, sliding_window=5),
    "window of one": lambda: SlidingAttention(**GROUPED, sliding_window=1),
    "ovq": lambda: OVQAttention(**GROUPED, chunk_size=4, max_centroids=9),
    "ovq, other rules": lambda: OVQAttention(**GROUPED, chunk_size=4, max_centroids=9, min_state_size=True,
                                             counts_for_rates_only=True),
    "shifted ovq": lambda: OVQAttention(**GROUPED, chunk_size=4, max_centroids=9, token_shift=True),
    "shifted window": lambda: SlidingAttention(**GROUPED, sliding_window=5, token_shift=True),
    "full, queries grow": lambda: FullAttention(**GROUPED, attn_scale=0.5, floor_scale=7),
    "shifted ovq, queries grow": lambda: OVQAttention(**GROUPED, chunk_size=4, max_centroids=9, token_shift=True,
                                                      attn_scale=0.5, floor_scale=7),
    "ovq, variance": lambda: OVQAttention(**GROUPED, chunk_size=4, max_centroids=9, variance=1.5),
    "closest pairs, variance and shares": lambda: ClosestPairAttention(
        **GROUPED, chunk_size=4, max_centroids=9, variance=0.5, shares=[[0.6, 1.4]]),
    "closest pairs": lambda: ClosestPairAttention(**GROUPED, chunk_size=4, max_centroids=9, pinned_tokens=1),
    "vq": lambda: VQAttention(**GROUPED, codebook_size=7),
    "kvm": lambda: KVMAttention(**SIZES, chunk_len=4, n_bswa_chunks=2, state_budget_mode="kvm_saturation",
                                state_saturation_n=12, state_min_len=1, n_max_d_chunks=100),
    "kvm of one size": lambda: KVMAttention(**SIZES, chunk_len=4, state_min_len=6, use_merge_gate_keys=False,
                                            use_merge_gate_values=False, use_head_temps=False),
    "gated delta net": lambda: GatedDeltaNet(12, 2, 6, value_head_dim=4, num_v_heads=4),
    "gated delta net without convolutions": lambda: GatedDeltaNet(12, 2, 6, use_short_conv=False)}


def made(name):
    torch.manual_seed(7)
    module = MODULES[name]().double()
    with torch.no_grad():
        for parameter in module.parameters():  # nothing at its initial zero or one
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module


def reference_of(module):
    """Returns the reference's output of a module, from its parameters: a one-layer part of OvqModel."""
    if isinstance(module, GatedDeltaNet):
        plain = GatedDeltaNet.__mro__[2].forward
        return lambda x: plain(module, x)
    from ovq.model import Attention
    from ovq.mixers import rope_tables
    config = module.config
    plain = Attention(config, module.layer_type, module.shares, "none", False).double()
    plain.load_state_dict(module.state_dict())
    for name, parameter in plain.named_parameters():
        setattr_path(plain, name, module.get_parameter(name))
    return lambda x: plain(x, rope_tables(x.shape[1], config.head_dim, config.rope_theta, x.device), None)


def setattr_path(module, name, parameter):
    *path, last = name.split(".")
    for part in path:
        module = getattr(module, part)
    module._parameters[last] = parameter


def off(ours, theirs):
    """Returns the largest difference of pairs of tensors, relative to the largest element."""
    return max(((a - b).abs().max() / b.abs().max().clamp(min=1e-6)).item() for a, b in zip(ours, theirs))


def cut(n_tokens, n_cuts):
    return [0, *sorted(random.sample(range(1, n_tokens), min(n_cuts, n_tokens - 1))), n_tokens]


class ChunkFormTest(unittest.TestCase):
    def setUp(self):
        random.seed(1)
        torch.manual_seed(1)

    def check(self, reference, plan, qkv, chunk_len, max_slots, n_cuts, **options):
        for x in qkv:
            x.requires_grad_()
        expected = reference(*qkv, chunk_len, max_slots)
        given = torch.randn_like(expected)
        memory, outs, bounds = chunked.empty_dictionary(*qkv[1:], max_slots), [], cut(qkv[1].shape[2], n_cuts)
        for begin, end in zip(bounds, bounds[1:]):
            out, memory = chunked.attend_in_chunks(*(x[..., begin:end, :] for x in qkv), memory, begin, chunk_len,
                                                   plan, **options)
            outs.append(out)
        out = torch.cat(outs, -2)
        gradients = zip(torch.autograd.grad(out, qkv, given), torch.autograd.grad(expected, qkv, given))
        for ours, theirs in ((out, expected), *gradients):
            self.assertLess(off([ours], [theirs]), CLOSE)
        return memory

    def test_chunks_side_by_side_equal_the_loop_over_chunks(self):
        for trial in range(40):
            n_tokens, chunk_len = random.randint(1, 150), random.choice((2, 4, 8, 16))
            max_slots, group = random.choice((4, 9, 20, 100)), random.choice((1, 2, 3))
            n_cuts, recompute = random.choice((0, 0, 1, 4)), random.random() < 0.3
            scores = mock.patch.dict(chunked.GROUP_SCORES, cpu=random.choice((1, 4000, 1 << 20)))
            with scores, self.subTest(trial=trial, n_tokens=n_tokens, chunk_len=chunk_len, max_slots=max_slots, cuts=n_cuts):
                qkv = random_qkv(n_tokens, group=group)
                self.check(ovq_attention, lambda *chunks: chunked.plan_ovq(OvqRules(), *chunks), qkv, chunk_len,
                           max_slots, n_cuts, recompute=recompute)
                self.check(closest_pair_attention, lambda *chunks: chunked.plan_pairs(PairRule(), *chunks), qkv,
                           chunk_len, max_slots, n_cuts, recompute=recompute)

    def test_slots_are_means_of_all_that_was_merged(self):
        qkv = random_qkv(61)
        memory = self.check(ovq_attention, lambda *chunks: chunked.plan_ovq(OvqRules(), *chunks), qkv, 4, 9, 2)
        self.assertEqual((memory.counts.sum(-1) + memory.keys.shape[2]).unique().tolist(), [61])
        self.assertEqual(memory.slots.shape[2], 60 * 9 // 69)
        whole = torch.cat(qkv[1:], -1)
        total = (memory.slots * memory.counts.unsqueeze(-1)).sum(2)
        torch.testing.assert_close(total, whole[:, :, :60].sum(2))

    def test_nothing_waits_for_numbers_of_the_device(self):
        # meta tensors have no numbers: whoever asks for one, as a GPU's would have to be waited for, fails
        model = Decoder(config_from_dict(support.tiny_config())).to("meta")
        tokens = torch.zeros(2, 60, dtype=torch.int64, device="meta")
        model(tokens).sum().backward()
        logits, state = model.read(tokens[:, :37])
        self.assertEqual(model.step(tokens[:, 37], state)[0].device, logits.device)

    def test_a_gpus_attention_kernel_reads_the_same(self):
        def kernel(q, keys, values, attn_mask=None, is_causal=False, scale=None):
            self.assertEqual((scale, q.dim(), q.shape[:2], keys.shape[:2]), (1.0, 4, values.shape[:2], values.shape[:2]))
            mask = attn_mask if attn_mask is not None else torch.ones(q.shape[2], keys.shape[2]).tril() > 0
            self.assertEqual((is_causal, mask.dtype), (attn_mask is None, torch.bool))
            scores = torch.matmul(q, keys.transpose(-1, -2)).masked_fill(~mask, float("-inf"))
            return torch.matmul(scores.softmax(-1), values)

        for name in MODULES:
            module, x = made(name), torch.randn(2, 50, 12).double()
            expected = module(x)[0]
            with self.subTest(module=name), mock.patch.object(mixers, "has_kernel", lambda q: True), \
                    mock.patch.object(F, "scaled_dot_product_attention", kernel, create=True):
                self.assertLess(off([module(x)[0]], [expected]), CLOSE)
                _, state = module(x[:, :30])
                self.assertLess(off([module(x[:, 30:], state)[0]], [expected[:, 30:]]), CLOSE)
        # the two channels of ln count together round bfloat16's 2^-9 to 2^-17
        bias = torch.tensor(1000.0).log()
        high = bias.bfloat16()
        self.assertLess(abs(float(high) + float((bias - high.float()).bfloat16()) - float(bias)), float(bias) * 2 ** -16)


class ModulesTest(unittest.TestCase):
    def setUp(self):
        random.seed(2)

    def test_modules_equal_the_reference_with_gradients(self):
        for name in MODULES:
            module = made(name)
            reference = reference_of(module)
            for n_tokens in (1, 4, 23, 50):
                with self.subTest(module=name, n_tokens=n_tokens):
                    x = torch.randn(2, n_tokens, 12, dtype=torch.float64, requires_grad=True)
                    ours, theirs = module(x)[0], reference(x)
                    self.assertLess(off([ours], [theirs]), CLOSE)
                    given, inputs = torch.randn_like(ours), [x, *module.parameters()]
                    gradients = [torch.autograd.grad(y, inputs, given, allow_unused=True) for y in (ours, theirs)]
                    used = [pair for pair in zip(*gradients) if pair[1] is not None]
                    self.assertGreater(len(used), 3)
                    # 2e-6 of noise in gradients that cancel, as those of a sum over softmax's scores do
                    self.assertLess(off(*zip(*used)), 100 * CLOSE)

    def test_going_on_from_a_state_equals_all_at_once(self):
        for name in MODULES:
            module = made(name)
            x = torch.randn(2, 50, 12).double()
            with torch.no_grad():
                whole, last = module(x)
                for n_cuts in (1, 3, 10):
                    state, outs, bounds = None, [], cut(50, n_cuts)
                    for begin, end in zip(bounds, bounds[1:]):
                        y, state = module(x[:, begin:end], state)
                        outs.append(y)
                    with self.subTest(module=name, bounds=bounds):
                        self.assertLess(off([torch.cat(outs, 1)], [whole]), CLOSE)
                        self.assert_same_states(state, last)
                state, outs = None, []
                for token in x.unbind(1):
                    y, state = module.step(token, state)
                    outs.append(y)
                with self.subTest(module=name, bounds="single tokens"):
                    self.assertLess(off([torch.stack(outs, 1)], [whole]), CLOSE)
                    self.assert_same_states(state, last)

    def assert_same_states(self, ours, theirs):
        tensors = [[], []]
        for state, into in zip((ours, theirs), tensors):
            map_tensors(state, into.append)
        self.assertEqual([x.shape for x in tensors[0]], [x.shape for x in tensors[1]])
        for a, b in zip(*tensors):
            torch.testing.assert_close(a, b, rtol=CLOSE, atol=CLOSE, equal_nan=True)

    def test_states_are_bounded_and_saved_as_they_are(self):
        for name in MODULES:
            module = made(name)
            with self.subTest(module=name), torch.no_grad():
                _, state = module(torch.randn(2, 40, 12).double())
                file = io.BytesIO()
                torch.save(state, file)
                if not name.startswith("full"):  # nothing holds on to what was read
                    _, later = module(torch.randn(2, 400, 12).double(), state)
                    more = io.BytesIO()
                    torch.save(later, more)
                    self.assertLess(more.tell(), file.tell() + 40 * 12 * 8 * 4)
                file.seek(0)
                x = torch.randn(2, 9, 12).double()
                self.assertTrue(torch.equal(module(x, state)[0], module(x, torch.load(file))[0]))
                first = module(x[:1], state.map(lambda part: part[:1]))[0]
                self.assertLess(off([first], [module(x, state)[0][:1]]), CLOSE)

    def test_packed_and_masked_sequences_are_read_alone(self):
        lengths = (3, 17, 1, 30, 4, 16)
        bounds = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
        for name in MODULES:
            module = made(name)
            packed = torch.randn(1, bounds[-1], 12).double().requires_grad_()
            alone = [module(packed[:, begin:end])[0] for begin, end in zip(bounds, bounds[1:])]
            with self.subTest(module=name):
                out, state = module(packed, cu_seqlens=torch.tensor(bounds))
                self.assertIsNone(state)
                expected, given = torch.cat(alone, 1), torch.randn_like(out)
                self.assertLess(off([out], [expected]), CLOSE)
                gradients = [torch.autograd.grad(y, packed, given) for y in (out, expected)]
                self.assertLess(off(*gradients), 100 * CLOSE)
                mask = torch.zeros(len(lengths), 32, dtype=torch.bool)
                for i, length in enumerate(lengths):  # filled up on the left, on the right, or in between
                    mask[i, (32 - length if i % 3 == 0 else 0):][:length] = True
                mask[1] = torch.arange(32) % 15 < 9
                x = torch.full((len(lengths), 32, 12), float("nan")).double()
                x[mask] = torch.randn(int(mask.sum()), 12).double()
                out = module(x, mask=mask)[0]
                for row, real, y in zip(x, mask, out):
                    self.assertLess(off([y[real]], module(row[real].unsqueeze(0))[0]), CLOSE)
                    self.assertEqual(y[~real].abs().sum(), 0)

    def test_gradients_go_through_a_state_and_stop_where_it_is_detached(self):
        for name in ("ovq", "closest pairs", "gated delta net", "sliding"):
            module, x = made(name), torch.randn(1, 40, 12).double().requires_grad_()
            expected = torch.autograd.grad(module(x)[0][:, 30:].sum(), x)[0]
            _, state = module(x[:, :30])
            with self.subTest(module=name):
                through = torch.autograd.grad(module(x[:, 30:], state)[0].sum(), x, retain_graph=True)[0]
                self.assertLess(off([through], [expected]), 100 * CLOSE)
                state = state.map(torch.detach)
                self.assertEqual(torch.autograd.grad(module(x[:, 30:], state)[0].sum(), x)[0][:, :30].abs().sum(), 0)

    def test_errors_name_what_is_wrong(self):
        module = made("ovq")
        x = torch.randn(2, 6, 12).double()
        _, state = module(x)
        for message, call in (
                ("^ovq.max_centroids: 0", lambda: OVQAttention(**SIZES, max_centroids=0)),
                ("^ovq.chunks: unknown", lambda: OVQAttention(**SIZES, chunks=3)),
                ("^ovq.delta_rule: only", lambda: OVQAttention(**SIZES, delta_rule=True)),
                ("^num_key_value_heads: 3 does not divide", lambda: OVQAttention(12, 4, num_kv_heads=3)),
                ("^gdn.head_dim: 0", lambda: GatedDeltaNet(12, 2, 0)),
                ("^ovq.max_centroids: 1 gives", lambda: module(x, max_centroids=1)),
                ("^x: no tokens", lambda: module(x[:, :0])),
                ("^state: sequences of unequal", lambda: module(x[:1], state, cu_seqlens=[0, 6])),
                ("^state: of 2 sequences, but there are 1", lambda: module.step(x[:1, 0], state)),
                ("^cu_seqlens: packed .* batch of 1, not of 2", lambda: module(x, cu_seqlens=[0, 6])),
                (r"^cu_seqlens: \[0, 7\] do not ascend .* 6", lambda: module(x[:1], cu_seqlens=[0, 7])),
                ("^cu_seqlens, mask: no sequence", lambda: module(x, mask=torch.zeros(2, 6))),
                (r"^mask: shape \[2, 5\], but .* \[2, 6\]", lambda: module(x, mask=torch.ones(2, 5)))):
            with self.subTest(message=message), self.assertRaisesRegex(ValueError, message):
                call()


def hybrid_config(**changes):
    """One layer of every kind that a decoder with a state has."""
    kinds = ["sliding_attention", "ovq_attention", "kvm_attention", "vq_attention", "gated_delta_net",
             "full_attention"]
    return support.tiny_config(**{
        "layer_types": kinds, "num_hidden_layers": len(kinds), "vq": {"codebook_size": 6},
        "kvm": {"chunk_len": 8, "state_budget_mode": "power_law", "n_max_d_chunks": 9},
        "gdn": {"num_heads": 2, "head_dim": 8, "value_head_dim": 8, "conv_size": 4}, **changes})


class DecoderTest(unittest.TestCase):
    def setUp(self):
        random.seed(3)
        torch.manual_seed(3)

    CONFIGS = {"every kind": hybrid_config(), "shares": support.shared_out_config(),
               "shared ovq heads": support.tiny_config(layer_types=2 * ["ovq_attention"], ovq={
                   "chunk_size": 8, "max_centroids": 16, "shares": [1.5, [0.75, 0.25]]}),
               "closest pairs": support.tiny_config(ovq={"chunk_size": 8, "max_centroids": 16,
                                                         "update": "closest-pair"}),
               "shift and positions": support.tiny_config(token_shift=True, pe_abs=True, tie_word_embeddings=False)}

    def made(self, raw):
        """Returns (a Decoder, an OvqModel with its weights), in float64."""
        config = config_from_dict(raw)
        ours, theirs = Decoder(config, torch.float64).double(), OvqModel(config, torch.float64).double()
        theirs.load_state_dict(ours.state_dict())
        return ours, theirs

    def test_a_decoder_equals_the_reference_and_goes_on_from_its_state(self):
        tokens = torch.randint(0, 258, (2, 60))
        for name, raw in self.CONFIGS.items():
            ours, theirs = self.made(raw)
            with self.subTest(config=name), torch.no_grad():
                expected = theirs(tokens)
                self.assertLess(off([ours(tokens)], [expected]), CLOSE)
                logits, state = ours.read(tokens[:, :37])
                one, state = ours.step(tokens[:, 37], state)
                rest, state = ours.read(tokens[:, 38:], state)
                self.assertEqual(state.n_tokens, 60)
                self.assertLess(off([torch.cat((logits, one.unsqueeze(1), rest), 1)], [expected]), CLOSE)
                packed = ours(tokens.view(1, -1), cu_seqlens=[0, 60, 120])
                self.assertLess(off([packed.view_as(expected)], [expected]), CLOSE)
                mask = torch.arange(60).expand(2, -1) >= torch.tensor([[0], [23]])
                self.assertLess(off([ours(tokens, mask=mask)[1:, 23:]], [ours(tokens[1:, 23:])]), CLOSE)

    def test_training_in_both_gives_the_same_weights(self):
        for name, raw in self.CONFIGS.items():
            models = self.made(raw)
            optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
            with self.subTest(config=name):
                for _ in range(3):
                    tokens, losses = torch.randint(0, 258, (2, 50)), []
                    for model, optimizer in zip(models, optimizers):
                        optimizer.zero_grad()
                        losses.append(F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()))
                        losses[-1].backward()
                        optimizer.step()
                    self.assertLess(abs(losses[0] - losses[1]).item(), 10 * CLOSE)
                for parameter, other in zip(*(model.parameters() for model in models)):
                    torch.testing.assert_close(parameter, other, rtol=1e-9, atol=1e-10)

    def test_a_saved_model_is_the_reference_models(self):
        for name, raw in self.CONFIGS.items():
            model, tokens = Decoder(config_from_dict(raw)), torch.randint(0, 258, (1, 40))
            with self.subTest(config=name), tempfile.TemporaryDirectory() as folder, torch.no_grad():
                model.save_native(folder)
                loaded, again = load_model(folder), Decoder.from_native(folder)
                self.assertEqual(loaded.config, model.config)
                self.assertTrue(torch.equal(again(tokens), model(tokens)))
                # float32: 24 bits, through six layers
                torch.testing.assert_close(loaded(tokens), model(tokens), rtol=0, atol=3e-5)
                whole = sum(tensor.numel() * 4 for tensor in model.state_dict().values())
                model.save_native(folder, shard_bytes=9000)  # of which only the embedding's file is larger
                sizes = [os.path.getsize(os.path.join(folder, file)) for file in os.listdir(folder)
                         if re.fullmatch(r"model-\d{5}-of-\d{5}.safetensors", file)]
                self.assertGreaterEqual(len(sizes), whole // 17000)
                self.assertFalse(os.path.exists(os.path.join(folder, "model.safetensors")))
                self.assertTrue(torch.equal(Decoder.from_native(folder)(tokens), model(tokens)))
                model.save_native(folder)
                self.assertEqual(sorted(os.listdir(folder)), ["config.json", "model.safetensors"])
                with self.assertRaisesRegex(ValueError, "^dtype: 'int8' is not one of float32"):
                    model.save_native(folder, "int8")

    def test_shipped_models_are_read_alike(self):
        for name in ("basic-icr-small-ovq", "basic-icr-small-closest-pair", "basic-icr-small-kvm",
                     "basic-icr-small-gdn", "basic-icr-small-vq"):
            folder, tokens = os.path.join(support.TRAINING, "..", "models", name), torch.randint(0, 131, (1, 200))
            theirs, ours = load_model(folder).double(), Decoder.from_native(folder, torch.float64).double()
            theirs.compute_dtype = torch.float64
            with self.subTest(model=name), torch.no_grad():
                self.assertLess(off([ours(tokens)], [theirs(tokens)]), 10 * CLOSE)

    def test_narrow_weights_and_autocast_stay_close(self):
        tokens = torch.randint(0, 258, (2, 60))
        for name in ("every kind", "shift and positions"):
            model = Decoder(config_from_dict({**self.CONFIGS[name], "tie_word_embeddings": False}))

            def loss(model):
                return F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

            expected = loss(model).item()
            products, weights = (Decoder(model.config, torch.bfloat16) for _ in range(2))
            for one in (products, weights):
                one.load_state_dict(model.state_dict())
            for one, autocast in ((model, True), (products, False), (weights.bfloat16(), False)):
                with self.subTest(config=name, autocast=autocast, weights=one.lm_head.weight.dtype):
                    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                        narrow = loss(one)
                    self.assertAlmostEqual(narrow.item(), expected, delta=0.03)  # bfloat16: 2^-9 of logits near 3
                    narrow.backward()
                    for parameter in one.parameters():
                        self.assertTrue(parameter.grad is None or parameter.grad.isfinite().all())

    def test_layers_without_a_module_are_named(self):
        raw = support.tiny_config(layer_types=["sliding_attention", "mesa_net"],
                                  mesa_net={"num_heads": 2, "head_dim": 8})
        with self.assertRaisesRegex(ValueError, r"^layer_types\[1\]: 'mesa_net' has no module"):
            Decoder(config_from_dict(raw))


if __name__ == "__main__":
    unittest.main()
