"""A common pool of rows compared with plain rows of one head, and its reader with the model's own.
"""

import contextlib
import io
import os
import tempfile
import unittest

import numpy as np
import torch

import support
import pool
from closest_pair_plain import ClosestPair
from ovq.config import config_from_dict
from ovq.model import OvqModel, save_model, write_json
from pool import HeadRows, Reader, merge_closest


def head_of(keys, values):
    head = HeadRows(keys.shape[1], values.shape[1], 0.5, len(keys))
    head.append(keys, values)
    return head


class RowsTest(unittest.TestCase):
    def setUp(self):
        self.random = np.random.default_rng(0)

    def _tokens(self, n, spread=1.0):
        return spread * self.random.standard_normal((n, 8)), self.random.standard_normal((n, 4))

    def test_one_head_is_the_plain_rule(self):
        keys, values = self._tokens(40)
        plain, head = ClosestPair(max_rows=15), head_of(keys, values)
        plain.append(keys, values)
        merge_closest([head], [1.0], 15)
        self.assertEqual(list(head.counts), list(plain.counts))
        np.testing.assert_allclose(head.keys, plain.keys, rtol=1e-9)
        np.testing.assert_allclose(head.values, plain.values, rtol=1e-9)

    def test_distances_are_kept_from_chunk_to_chunk(self):
        keys, values = self._tokens(40)
        head = head_of(keys, values)
        merge_closest([head], [1.0], 15)
        more = self._tokens(10)
        head.append(*more)
        whole = HeadRows(8, 4, 0.5, 1)
        whole._scale = head._scale
        whole.append(head.keys, head.values)
        np.testing.assert_allclose(head.distances, whole.distances, rtol=1e-6)

    def test_the_closest_pair_of_all_heads_merges(self):
        heads = [head_of(*self._tokens(20, spread)) for spread in (0.5, 1.0, 2.0)]
        expected = [20, 20, 20]
        copies = [head_of(head.keys.copy(), head.values.copy()) for head in heads]
        for _ in range(25):  # one after another, by comparing all distances
            least = min(range(3), key=lambda i: copies[i].distances.min() * (1, 1, 0.5)[i])
            expected[least] -= 1
            merge_closest([copies[least]], [1.0], expected[least])
        merge_closest(heads, (1, 1, 0.5), 35)
        self.assertEqual([len(head.keys) for head in heads], expected)
        self.assertEqual(len(set(expected)), 3)

    def test_no_pair_merges_where_there_is_room(self):
        head = head_of(*self._tokens(12))
        merge_closest([head], [1.0], 12)
        self.assertEqual(list(head.counts), [1.0] * 12)


class ReaderTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.model = OvqModel(config_from_dict(support.shared_out_config())).eval()
        self.tokens = torch.randint(0, 256, (50,))

    def _read(self, memory, n_rows, scales=None):
        reader = Reader(self.model, memory, n_rows, 8, scales)
        return reader.logits(self.tokens), reader.n_rows()

    def test_rows_for_all_are_full_attention(self):
        with torch.no_grad():
            whole = self.model(self.tokens[None])[0]
        for memory, n_rows in (("exact", 2), ("equal", 50), ("pool", 50)):
            with self.subTest(memory=memory):
                torch.testing.assert_close(self._read(memory, n_rows)[0], whole)

    def test_every_field_of_the_decoder_is_read(self):
        for changes in ({"token_shift": True}, {"attn_scale": 0.3, "floor_scale": 8}, {"pe_abs": True},
                        {"final_norm": False}, {"intermediate_size": [0, 24, 0, 24]}):
            with self.subTest(changes=changes), torch.no_grad():
                self.model = OvqModel(config_from_dict({**support.shared_out_config(), **changes})).eval()
                for name, parameter in self.model.named_parameters():
                    if name.endswith("_shift"):
                        parameter.uniform_()
                torch.testing.assert_close(self._read("exact", 2)[0], self.model(self.tokens[None])[0], rtol=1e-4, atol=1e-4)

    def test_layers_of_another_type_are_refused(self):
        config = support.tiny_config(layer_types=["vq_attention", "full_attention"], vq={"codebook_size": 4})
        with self.assertRaisesRegex(ValueError, r"^layer_types\[0\]: 'vq_attention' is neither"):
            Reader(OvqModel(config_from_dict(config)), "exact", 2, 8)

    def test_how_rows_are_shared(self):
        self.assertEqual(self._read("equal", 12)[1], [12] * 4)
        self.assertEqual(self._read("shares", 12)[1], [18, 18, 9, 3])
        self.assertEqual(sum(self._read("pool", 12)[1]), 48)
        wide, narrow = (self._read("pool", 12, scales)[1] for scales in ([8.0, 1.0], [1.0, 8.0]))
        self.assertGreater(sum(wide[:2]), sum(narrow[:2]))


class ProgramTest(unittest.TestCase):
    def test_shares_are_those_of_closest_pairs(self):
        raw = support.shared_out_config()
        raw["ovq"]["shares"] = {"closest-pair": [1.5, [0.75, 0.25]], "paper": [0.5, 1.5]}
        model, output = OvqModel(config_from_dict(raw)), io.StringIO()
        with tempfile.TemporaryDirectory() as folder:
            save_model(folder, model.config, model.state_dict())
            write_json(os.path.join(folder, "task.json"),
                       {"task": {"name": "basic_icr", "key_tokens": 2, "value_tokens": 2, "n_symbols": 20}})
            with contextlib.redirect_stdout(output):
                pool.main(["--model", folder, "--length", "100", "--rows", "12", "--chunk", "8", "--sequences", "2",
                           "--memories", "shares"])
        self.assertIn("rows of the heads in the mean 18, 18, 9, 3\n", output.getvalue())


if __name__ == "__main__":
    unittest.main()
