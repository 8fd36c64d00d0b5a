"""The shipped models of tasks, served: larger dictionaries recall more, and the results are those
of docs/results.md.

usage: task_models_test.py --build BUILD_FOLDER [unittest arguments]
"""

import argparse
import csv
import json
import os
import re
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(ROOT, "training"),
                os.path.join(ROOT, "clients", "python")]

try:
    import numpy  # noqa: F401
    from ovq_client import Client
except ImportError as error:
    print(f"SKIPPED: {error}; install python3-numpy, python3-grpcio, python3-protobuf and "
          "protobuf-compiler")
    sys.exit(0)

import score
from server_process import ServerProcess, wait_for

BIN = None
# Tokens of a sequence are right or wrong together: with this many sequences the errors of
# docs/results.md are up to 4 points. The bounds below leave three errors or more.
SEQUENCES = "16"


EQUAL_SHARES = {"ovq": {"shares": [1, 1]}}


def accuracies(model, lengths, centroids, memory=None, config=None, **changes):
    """{(length, centroids): accuracy} of a model in models/ on its task, fields of it changed.

    memory: of the server, in place of the model's own. config: fields of its config.json.

    In-context learning has also {(length, centroids, examples seen): accuracy}.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "scores.csv")
        status = score.main(["--model", os.path.join(ROOT, "models", model), "--server",
                             os.path.join(BIN, "ovq-server"), "--lengths", lengths, "--centroids",
                             centroids, "--sequences", SEQUENCES, "--task", json.dumps(changes),
                             "--out", out, "--config", json.dumps(config or {}),
                             *(("--memory", memory) if memory else ())])
        assert status == 0
        with open(out, encoding="utf-8", newline="") as file:
            return {(int(row["length"]), row["centroids"], *filter(None, [row["seen"]])):
                    float(row["accuracy"]) for row in csv.DictReader(file)}


class RecallModels(unittest.TestCase):
    def test_a_larger_dictionary_recalls_more_and_half_the_tokens_suffice(self):
        for model, length in (("basic-icr-small-ovq", 2048), ("basic-icr-long-ovq", 4096)):
            found = accuracies(model, str(length), "256,512,1024,0.5x", config=EQUAL_SHARES)
            found = [found[length, size] for size in ("256", "512", "1024", "0.5x")]
            self.assertEqual(found, sorted(found), model)
            self.assertLess(found[0], 0.6, model)
            self.assertGreater(found[-1], 0.97, model)

    def test_full_recalls_the_trained_length_and_a_codebook_less(self):
        full = accuracies("basic-icr-small-full", "1024", "256")[1024, ""]
        codebook = accuracies("basic-icr-small-vq", "1024", "256")[1024, ""]
        self.assertGreater(full, 0.97)
        self.assertLess(codebook, 0.9)

    def test_closest_pairs_recall_what_the_papers_rule_forgets(self):
        """Closest pairs in a model trained with full attention recall as much as a model trained
        with the paper's rule at equal slots."""
        for model in ("basic-icr-small-full", "basic-icr-small-ovq"):
            paper, closest = (accuracies(model, "2048", "256", memory, EQUAL_SHARES)[2048, "256"]
                              for memory in ("paper", "closest-pair"))
            self.assertLess(paper, 0.7, model)
            self.assertGreater(closest, 0.95, model)

    def test_shipped_shares_recall_more_with_as_many_rows(self):
        for model, memory, rows, least in (("basic-icr-small-ovq", "paper", "0.125x", 0.8),
                                           ("basic-icr-small-full", "closest-pair", "1/16x", 0.95)):
            shared = accuracies(model, "2048", rows, memory)[2048, rows]
            equal = accuracies(model, "2048", rows, memory, EQUAL_SHARES)[2048, rows]
            self.assertGreater(shared, least, model)
            self.assertLess(equal, 0.7, model)

    def test_shipped_shares_hold_for_more_queries_than_a_chunk_has_room_for(self):
        """Accuracy on the part of the query section whose tokens are in the dictionary: 256 tokens,
        chunks have 64."""
        found = accuracies("basic-icr-small-full", "2048", "256", "closest-pair", n_queries=32)
        self.assertGreater(found[2048, "256"], 0.98)

    def test_kvm_recalls_what_its_rows_can_hold(self):
        found = accuracies("basic-icr-small-kvm", "512,4096", "256")
        self.assertGreater(found[512, "256"], 0.97)
        self.assertLess(found[4096, "256"], 0.5)

    def test_a_gated_delta_rule_recalls_what_its_matrix_can_hold(self):
        found = accuracies("basic-icr-small-gdn", "512,4096", "256")
        self.assertGreater(found[512, ""], 0.7)
        self.assertLess(found[4096, ""], 0.2)

    def test_a_mesa_layer_recalls_more_in_as_many_bytes(self):
        found, gated = (accuracies(f"basic-icr-small-{mixer}", "1024,8192", "256")
                        for mixer in ("mesa", "gdn"))
        self.assertGreater(found[1024, ""], gated[1024, ""] + 0.1)
        self.assertLess(found[8192, ""], 0.2)

    def test_a_barely_trained_mamba_recalls_a_little(self):
        found = accuracies("basic-icr-small-mamba2", "512,8192", "256")
        self.assertGreater(found[512, ""], 0.1)  # 1/128 by chance
        self.assertLess(found[8192, ""], 0.1)

    def test_positional_recall_is_harder(self):
        found = accuracies("positional-icr-small-ovq", "1024", "0.5x")[1024, "0.5x"]
        self.assertGreater(found, 0.8)  # a model that ignores the order has at most 0.75
        self.assertGreater(accuracies("positional-icr-small-full", "1024", "256")[1024, ""], found)


class Int8Weights(unittest.TestCase):
    def test_they_predict_nearly_what_the_weights_as_they_are_predict(self):
        """288 answers, nearly all correct: those near a tie may change."""
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "scores.csv")
            self.assertEqual(score.main(
                ["--model", os.path.join(ROOT, "models", "basic-icr-small-ovq"), "--server",
                 os.path.join(BIN, "ovq-server"), "--server-args=--weights int8",
                 "--check-server-args=", "--lengths", "1024", "--centroids", "1024", "--sequences",
                 SEQUENCES, "--out", out]), 0)
            with open(out, encoding="utf-8", newline="") as file:
                row, = csv.DictReader(file)
        self.assertEqual(row["checked"], row["scored"])
        self.assertGreater(float(row["agreement"]), 0.97)
        self.assertGreater(float(row["accuracy"]), 0.97)
        self.assertGreater(float(row["logprob_difference"]), 0)

    def test_the_server_says_so(self):
        model = os.path.join(ROOT, "models", "basic-icr-small-ovq")
        for flags, weights in (((), "bf16"), (("--weights", "int8"), "int8")):
            with ServerProcess(os.path.join(BIN, "ovq-server"), model, *flags) as server, \
                    Client(server.address) as client:
                self.assertEqual(client.model_info().weights, weights)
                self.assertIn(f'weights="{weights}"', server.metrics())
                self.assertIn(f"weight bytes in {weights}", server.stderr())


class FunctionModels(unittest.TestCase):
    def test_functions_are_learned_from_a_few_examples_as_with_full_attention(self):
        for model, size in (("linear-icl-small-ovq", "128"), ("linear-icl-small-full", "")):
            found = accuracies(model, "2048", "128")
            # nothing determines the first example
            self.assertLess(found[2048, size, "0"], 0.6, model)
            self.assertGreater(found[2048, size, "2"], 0.96, model)
            self.assertGreater(found[2048, size, "8"], 0.985, model)

    def test_fifty_150_and_600_functions_are_learned_too(self):
        for numbers, least in ((2, 0.97), (3, 0.95), (4, 0.85)):
            for model, size in (("linear-icl-four-ovq", "256"), ("linear-icl-four-full", "")):
                found = accuracies(model, "2048", "256", vector_tokens=numbers)
                self.assertLess(found[2048, size, "0"], 0.6, (model, numbers))
                self.assertGreater(found[2048, size, "8"], least, (model, numbers))

    def test_more_functions_than_in_training_need_a_larger_dictionary(self):
        sizes = ("32", "64", "128", "512")
        found = accuracies("linear-icl-small-ovq", "8192", ",".join(sizes), n_functions=64)
        found = [found[8192, size] for size in sizes]
        self.assertEqual(found, sorted(found))
        self.assertLess(found[0], 0.65)
        self.assertGreater(found[-1], 0.96)


class StatesOfOneSize(unittest.TestCase):
    def test_matrices_take_as_many_bytes_wherever_they_are_told(self):
        # the figures in docs/results.md
        for model, state_bytes in (("basic-icr-small-gdn", 204_800),
                                   ("basic-icr-small-mamba2", 204_800),
                                   ("basic-icr-small-mesa", 270_336)):
            with ServerProcess(os.path.join(BIN, "ovq-server"),
                               os.path.join(ROOT, "models", model)) as server, \
                    Client(server.address) as client:
                info = client.model_info([1, 1024, 1_048_576])
                self.assertEqual({size.state_bytes for size in info.state_sizes}, {state_bytes})
                self.assertEqual(info.state_bytes_cap, state_bytes)
                session_id = client.create_session([1]).session_id
                for position in (1, 5001):
                    session = client.get_session(session_id)
                    self.assertEqual((session.position, session.state_bytes, session.live_centroids),
                                     (position, state_bytes, 0))
                    # The engine publishes its figures a little later.
                    wait_for(lambda: re.findall(r'ovq_session_state_bytes\{.*kind="(?!budget).*\} (\d+)\n',
                                                server.metrics()) == [str(state_bytes)] * 2,
                             "as many bytes committed and reserved")
                    list(client.generate([5] * 5000, max_tokens=0, session_id=session_id))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    BIN = os.path.join(os.path.abspath(options.build), "bin")
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
