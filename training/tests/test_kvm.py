"""KVM attention against loops over tokens and rows, its gradients, its settings."""

import math
import unittest
from unittest import mock

import torch

import support
from ovq import kvm
from ovq.config import ConfigError, config_from_dict, config_to_dict, kvm_from_dict
from ovq.mixers import full_attention
from ovq.model import OvqModel
from test_mixers import random_qkv

HEADS, HEAD_DIM = 2, 4
CHUNK = 4
NO_CAP = 10 ** 9


def make_settings(**changes):
    return kvm_from_dict({"chunk_len": CHUNK, **changes}, HEAD_DIM)


# Kinds of updates: only merges, only appends (until the cap), both.
SETTINGS = {
    "fixed": {},
    "fixed, larger": {"state_min_len": 11, "n_max_d_chunks": 10, "sink_len": 2},
    "power law": {"state_budget_mode": "power_law", "state_growth_factor": 1.7,
                  "state_growth_exponent": 0.6, "n_max_d_chunks": 10, "masked_dims": 1},
    "power law, rounded": {"state_budget_mode": "power_law", "state_growth_factor": 3.0,
                           "state_round_down": 2, "n_max_d_chunks": 10, "n_bswa_chunks": 1},
    "saturation": {"state_budget_mode": "kvm_saturation", "state_saturation_n": 16,
                   "n_max_d_chunks": 10, "sink_len": 0, "n_bswa_chunks": 3},
    "every token a row": {"state_budget_mode": "power_law", "state_growth_factor": 1.0,
                          "state_growth_exponent": 1.0, "n_max_d_chunks": 4},
    "ungated appends": {"state_min_len": 6, "n_max_d_chunks": 10,
                        "apply_merge_gate_to_appends": False},
    "gated first rows": {"apply_merge_gate_to_initial_state": True},
    "gated values": {"use_merge_gate_keys": False, "state_min_len": 6, "n_max_d_chunks": 10},
    "gated keys": {"use_merge_gate_values": False, "state_min_len": 6, "n_max_d_chunks": 10},
    "plain": {"use_merge_gate_keys": False, "use_merge_gate_values": False,
              "use_head_temps": False},
    "without lengths": {"use_vlens": False, "masked_dims": 2},
}


def random_inputs(n_tokens, settings, batch=2):
    """Returns (q, k, v, gates, weights) in float64."""
    q, k, v = random_qkv(n_tokens, batch=batch, n_kv_heads=HEADS, group=1, head_dim=HEAD_DIM)
    gates = 2 * torch.rand(batch, HEADS, n_tokens).double() if settings.has_gates else None
    temps = torch.rand(2, HEADS).double() + 0.5 if settings.use_head_temps else (None, None)
    weights = kvm.Weights(torch.randn(HEAD_DIM).double(), torch.randn(HEAD_DIM).double(), *temps)
    return q, k, v, gates, weights


def naive_norm(x, weight, bias):
    mean = sum(x) / len(x)
    variance = sum((one - mean) ** 2 for one in x) / len(x)
    return torch.stack([(one - mean) / math.sqrt(variance + 1e-5) * w + b
                        for one, w, b in zip(x, weight, bias)])


def naive_budget(position, settings):
    if settings.state_budget_mode == "fixed":
        return settings.state_min_len
    n = settings.state_saturation_n
    target = (math.floor(settings.state_growth_factor *
                         position ** settings.state_growth_exponent)
              if settings.state_budget_mode == "power_law" else n * position // (n + position))
    while target % settings.state_round_down:
        target -= 1
    return max(target, settings.state_min_len)


class NaiveTable:
    """One head's rows: lists [key, value, length], changed in place."""

    def __init__(self, settings, norm):
        self.settings, self.norm, self.rows = settings, norm, []

    def prepared(self, token):
        """Returns (key, value) as the table stores them."""
        key = token["k"].clone()
        key[:self.settings.masked_dims] = 0
        return self.norm(key), token["v"]

    def gated(self, token):
        key, value = self.prepared(token)
        gate = token["gate"]
        return (key * gate if self.settings.use_merge_gate_keys else key,
                value * gate if self.settings.use_merge_gate_values else value)

    def length(self, value):
        return float(value.norm()) if self.settings.use_vlens else 1.0

    def append(self, token):
        apply = self.settings.apply_merge_gate_to_appends
        key, value = self.gated(token) if apply else self.prepared(token)
        self.rows.append([key, value, self.length(value)])

    def similarities(self, key):
        return [float(key @ self.norm(row[0])) for row in self.rows]

    def merge(self, tokens):
        if not tokens:
            return
        routed = []
        for token in tokens:
            key, value = self.gated(token)
            similarity = self.similarities(key)
            free = range(min(self.settings.sink_len, len(self.rows) - 1), len(self.rows))
            routed.append((max(free, key=similarity.__getitem__), key, value))
        for r, key, value in routed:
            self.rows[r][0], self.rows[r][1] = self.rows[r][0] + key, self.rows[r][1] + value
        if not self.settings.use_vlens:
            for row in self.rows:
                row[2] += 1

    def begin(self, tokens, cap):
        for token in tokens[:cap]:
            key, value = self.prepared(token)
            length = self.length(value)
            if self.settings.apply_merge_gate_to_initial_state:
                key, value = key * token["gate"], value * token["gate"]
            self.rows.append([key, value, length])
        self.merge(tokens[cap:])

    def update(self, tokens, position, cap):
        most = min(self.settings.chunk_len * self.settings.n_max_d_chunks, cap)
        target = max(min(naive_budget(position, self.settings), most), len(self.rows))
        n_new = min(target - len(self.rows), len(tokens))
        known = sorted(range(len(tokens)),
                       key=lambda i: max(self.similarities(self.prepared(tokens[i])[0])))
        fresh = known[:n_new]
        for i, token in enumerate(tokens):
            if i in fresh:
                self.append(token)
        self.merge([token for i, token in enumerate(tokens) if i not in fresh])

    def read(self):
        """Returns (keys, values) for a query."""
        return ([self.norm(key) for key, _, _ in self.rows],
                [value / value.norm() * length if self.settings.use_vlens else value / length
                 for _, value, length in self.rows])


def naive_kvm(q, k, v, gates, norm, temps, settings, cap):
    """Computes one head of one sequence: q, k [n_tokens, d], v [n_tokens, dv], gates [n_tokens]."""
    size, window = settings.chunk_len, settings.n_bswa_chunks
    tokens = [{"k": k[t], "v": v[t], "gate": gates[t]} for t in range(len(k))]
    table, outs = NaiveTable(settings, norm), []
    for t in range(len(k)):
        c = t // size
        if t % size == 0 and c == window:
            table.begin(tokens[:size], cap)
        elif t % size == 0 and c > window:
            table.update(tokens[(c - window) * size:(c - window + 1) * size], c * size, cap)
        keys, values = table.read()
        begin = max(0, (c + 1 - window) * size)
        scores = [q[t] @ key * temps[1] for key in keys]
        scores += [q[t] @ k[s] * temps[0] for s in range(begin, t + 1)]
        outs.append(torch.stack(scores).softmax(0) @ torch.stack(values + list(v[begin:t + 1])))
    return torch.stack(outs), len(table.rows)


class KvmTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def check(self, settings, n_tokens, cap):
        q, k, v, gates, weights = random_inputs(n_tokens, settings)
        out = kvm.kvm_attention(q, k, v, gates, weights, settings, cap)
        ones = torch.ones(n_tokens).double()
        sizes = set()
        for b in range(2):
            for h in range(HEADS):
                temps = [1.0 if temp is None else temp[h]
                         for temp in (weights.window_temp, weights.row_temp)]
                expected, size = naive_kvm(
                    q[b, h, 0], k[b, h], v[b, h], ones if gates is None else gates[b, h],
                    lambda x: naive_norm(x, weights.norm_weight, weights.norm_bias), temps,
                    settings, n_tokens if cap is None else cap)
                torch.testing.assert_close(out[b, h, 0], expected)
                sizes.add(size)
        self.assertEqual(len(sizes), 1)
        return sizes.pop()

    def test_it_equals_a_loop_over_tokens(self):
        for name, changes in SETTINGS.items():
            for n_tokens in (3, 8, 9, 42):
                with self.subTest(settings=name, n_tokens=n_tokens):
                    self.check(make_settings(**changes), n_tokens, None)

    def test_a_cap_bounds_the_rows_of_every_mode(self):
        for name, changes in SETTINGS.items():
            settings = make_settings(**changes)
            for cap in (1, 3, 6):
                with self.subTest(settings=name, cap=cap):
                    self.assertLessEqual(self.check(settings, 33, cap), cap)

    def test_rows_follow_the_published_configurations(self):
        """Number of rows in the chunks of 256 that begin at these positions."""
        sqrt16 = {"state_budget_mode": "power_law", "state_growth_factor": 16,
                  "state_min_len": 256, "n_max_d_chunks": 10000}
        saturate = {"state_budget_mode": "kvm_saturation", "state_saturation_n": 1024,
                    "state_min_len": 1, "n_max_d_chunks": 10000}
        expected = {
            "fixed": ({"state_min_len": 256}, {512: 256, 768: 256, 32768: 256}),
            "sqrt16": (sqrt16, {512: 256, 768: 443, 1024: 512, 1280: 572, 2048: 724, 4096: 1024,
                                8192: 1448, 32768: 2896}),
            "saturate1024": (saturate, {512: 256, 768: 438, 1024: 512, 2048: 682, 4096: 819,
                                        32768: 992})}
        for name, (changes, rows) in expected.items():
            settings, n_rows = kvm_from_dict(changes, 64), 256
            for position in range(768, 32769, 256):
                n_old, n_rows = n_rows, kvm.n_rows_at(position, n_rows, settings, NO_CAP)
                self.assertLessEqual(n_rows - n_old, 256)
                self.assertEqual(n_rows, rows.get(position, n_rows), f"{name} {position}")
                self.assertEqual(kvm.n_rows_at(position, n_old, settings, 300), max(
                    min(n_rows, 300), n_old))

    def test_while_all_fits_the_window_it_is_full_attention(self):
        settings = make_settings(n_bswa_chunks=5, use_head_temps=False)
        q, k, v, gates, weights = random_inputs(20, settings)
        out = kvm.kvm_attention(q, k, v, gates, weights, settings)
        torch.testing.assert_close(out, full_attention(q, k, v))

    def test_no_token_goes_to_a_sink(self):
        k, v = torch.ones(1, 1, CHUNK, HEAD_DIM).double(), torch.ones(1, 1, CHUNK, 3).double()
        weights = kvm.Weights(torch.ones(HEAD_DIM).double(), torch.zeros(HEAD_DIM).double())
        k[..., 0] = 2
        tokens = kvm.Tokens(k, v, k, v)
        rows = kvm.Rows(k.clone(), v.clone(), v[..., 0])
        rows.keys[..., 3, 0] = -2  # the sinks are more similar to the tokens, but excluded
        self.assertEqual(kvm.route(tokens, rows, weights, 3).tolist(), [[[3] * CHUNK]])
        self.assertEqual(kvm.route(tokens, rows, weights, 0).tolist(), [[[0] * CHUNK]])

    def check_gradients(self, changes, cap):
        """Checks gradients of the last chunk, which reads the first two only through the table.

        The assignments are constants to the gradient: perturbations must not change them."""
        settings = make_settings(**changes)
        q, k, v, gates, weights = random_inputs(4 * CHUNK, settings, batch=1)
        names = [i for i, weight in enumerate(weights) if weight is not None]
        inputs = [x.requires_grad_() for x in
                  (q, k, v, *(weights[i] for i in names), *([] if gates is None else [gates]))]
        seen = []  # the assignments of every call

        def recorded(function):
            def call(*arguments):
                made = function(*arguments)
                seen[-1].append(torch.cat(made, -1) if isinstance(made, tuple) else made)
                return made
            return call

        def last_chunk(q, k, v, *others):
            seen.append([])
            used = list(weights)
            for i, weight in zip(names, others):
                used[i] = weight
            return kvm.kvm_attention(q, k, v, others[len(names)] if gates is not None else None,
                                     kvm.Weights(*used), settings, cap)[..., -CHUNK:, :]

        with mock.patch.object(kvm, "route", recorded(kvm.route)), \
                mock.patch.object(kvm, "split_tokens", recorded(kvm.split_tokens)):
            self.assertTrue(torch.autograd.gradcheck(last_chunk, inputs, eps=1e-6, atol=1e-6,
                                                     rtol=1e-5))
        self.assertGreater(len(seen), 2 * sum(x.numel() for x in inputs))
        self.assertTrue(seen[0])
        for made in seen:
            self.assertEqual(len(made), len(seen[0]))
            self.assertTrue(all(map(torch.equal, made, seen[0])))
        # the first chunk's tokens are read only through the table
        last_chunk(*inputs).square().sum().backward()
        for x in (k, v):
            self.assertGreater(x.grad[:, :, :CHUNK].abs().amax((0, 1, 3)).min().item(), 0)

    def test_gradients_through_the_table_are_finite_differences(self):
        for name in ("fixed", "power law", "ungated appends", "gated first rows", "without lengths",
                     "plain"):
            with self.subTest(settings=name):
                self.check_gradients(SETTINGS[name], None)
        with self.subTest(settings="capped"):
            self.check_gradients(SETTINGS["power law"], 3)


class SettingsTest(unittest.TestCase):
    def raw(self, **section):
        return support.tiny_config(layer_types=["sliding_attention", "kvm_attention"],
                                   kvm={"chunk_len": 8, **section})

    def test_defaults_are_those_of_the_published_code(self):
        settings = config_from_dict({**self.raw(), "kvm": {}}).kvm
        self.assertEqual((settings.chunk_len, settings.n_bswa_chunks, settings.sink_len),
                         (256, 2, 1))
        self.assertEqual((settings.state_budget_mode, settings.state_min_len), ("fixed", -1))
        self.assertTrue(settings.apply_merge_gate_to_appends)
        self.assertFalse(settings.apply_merge_gate_to_initial_state)

    def test_round_trip(self):
        raw = self.raw(state_budget_mode="kvm_saturation", state_saturation_n=9)
        del raw["ovq"]
        config = config_from_dict(raw)
        self.assertEqual(config_from_dict(config_to_dict(config)), config)
        self.assertNotIn("ovq", config_to_dict(config))
        other = config_to_dict(config_from_dict(support.tiny_config(kvm={"chunk_len": 8})))
        self.assertNotIn("kvm", other)  # no layer has it

    def test_errors_name_the_field(self):
        broken = {
            "kvm.chunk_len": {"chunk_len": 0},
            "kvm.n_bswa_chunks": {"n_bswa_chunks": 0},
            "kvm.sink_len: 8": {"sink_len": 8},
            "kvm.state_budget_mode": {"state_budget_mode": "linear"},
            "kvm.state_growth_factor": {"state_growth_factor": 0},
            "kvm.state_growth_exponent": {"state_growth_exponent": "half"},
            "kvm.state_round_down": {"state_round_down": 0},
            "kvm.state_min_len": {"state_min_len": -2},
            "kvm.state_saturation_n: None": {"state_budget_mode": "kvm_saturation"},
            "kvm.state_growth_exponent: 1.5": {"state_growth_exponent": 1.5},
            "kvm.state_round_down: 3": {"state_round_down": 3},
            "kvm.n_max_d_chunks": {"n_max_d_chunks": 1.5},
            "kvm.max_centroids": {"max_centroids": 0},
            "kvm.values_round_to_bfloat16": {"values_round_to_bfloat16": 1},
            "kvm.masked_dims: 8": {"masked_dims": 8},
            "kvm.use_head_temps": {"use_head_temps": 1},
            "kvm.use_vlens": {"use_vlens": False, "state_min_len": 9, "n_max_d_chunks": 2},
            "kvm.chunk_size": {"chunk_size": 8},
        }
        for field, section in broken.items():
            with self.subTest(field=field), self.assertRaises(ConfigError) as caught:
                config_from_dict(self.raw(**section))
            self.assertTrue(str(caught.exception).startswith(field), str(caught.exception))
        with self.assertRaisesRegex(ConfigError, "^num_key_value_heads: 1"):
            config_from_dict({**self.raw(), "num_key_value_heads": 1})


class ModelTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.raw = support.tiny_config(
            layer_types=["sliding_attention", "kvm_attention"],
            kvm={"chunk_len": 8, "state_budget_mode": "kvm_saturation", "state_saturation_n": 32,
                 "n_max_d_chunks": 10})

    def test_its_tensors(self):
        names = {name.removeprefix("model.layers.1.self_attn."): list(tensor.shape) for name, tensor
                 in OvqModel(config_from_dict(self.raw)).state_dict().items()}
        for name, shape in (("key_weighting.weight", [2, 16]), ("ln_s_k.weight", [8]),
                            ("ln_s_k.bias", [8]), ("front_head_temp", [2]),
                            ("state_head_temp", [2])):
            self.assertEqual(names[name], shape, name)
        plain = config_from_dict({**self.raw, "kvm": {
            **self.raw["kvm"], "use_merge_gate_keys": False, "use_merge_gate_values": False,
            "use_head_temps": False}})
        names = " ".join(OvqModel(plain).state_dict())
        self.assertNotIn("key_weighting", names)
        self.assertNotIn("temp", names)

    def test_a_sequence_does_not_depend_on_its_batch_or_its_future(self):
        model = OvqModel(config_from_dict(self.raw), torch.float64).double()
        tokens = torch.randint(0, 258, (3, 50))
        logits = model(tokens)
        torch.testing.assert_close(model(tokens[1:2, :37]), logits[1:2, :37])

    def test_every_parameter_learns(self):
        model = OvqModel(config_from_dict(self.raw))
        model(torch.randint(0, 258, (2, 50))).square().sum().backward()
        for name, parameter in model.named_parameters():
            self.assertGreater(parameter.grad.abs().max().item(), 0, name)

    def test_the_cap_is_used_and_checked(self):
        model = OvqModel(config_from_dict(self.raw))
        tokens = torch.randint(0, 258, (1, 50))
        logits = model(tokens)
        self.assertTrue(torch.equal(model(tokens, 32), logits))
        capped = model(tokens, 12)
        self.assertFalse(torch.equal(capped, logits))
        by_config = OvqModel(config_from_dict({**self.raw, "kvm": {
            **self.raw["kvm"], "max_centroids": 12}}))
        by_config.load_state_dict(model.state_dict())
        self.assertTrue(torch.equal(by_config(tokens), capped))
        with self.assertRaisesRegex(ConfigError, "max_centroids"):
            model(tokens, 0)

    def test_bfloat16_products_stay_close(self):
        config = config_from_dict(self.raw)
        exact, rounded = OvqModel(config), OvqModel(config, torch.bfloat16)
        rounded.load_state_dict(exact.state_dict())
        tokens = torch.randint(0, 258, (2, 60))
        loss = [torch.nn.functional.cross_entropy(m(tokens).flatten(0, 1), tokens.flatten()).item()
                for m in (exact, rounded)]
        self.assertAlmostEqual(loss[0], loss[1], delta=0.02)


if __name__ == "__main__":
    unittest.main()
