"""The report of scores, and which results reproduce.py keeps or repeats."""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import torch

import support
import report
import reproduce
from scoring import COLUMNS
from train import CHECKPOINT


def row(mixer, length, centroids="", **changes):
    values = {"model": f"m-{mixer}", "mixer": mixer, "ablation": "none", "backend": "server",
              "task": "basic_icr", "length": length, "tokens": length - 3, "centroids": centroids,
              "state_bytes": 1000 + length, "full_kv_cache_bytes": 64 * length, "scored": 100,
              "accuracy": 0.5, "error": 0.0125}
    return {**values, **changes}


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, *names):
        return os.path.join(self.folder, *names)


class ReportTest(Folder):
    def write(self, name, rows):
        with open(self.path(name), "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        return self.path(name)

    def report(self, *parts, **options):
        """Returns the markdown, after checking the figure."""
        paths = [self.write(f"{i}.csv", rows) for i, rows in enumerate(parts)]
        png, md = report.report(paths, self.path("out", "scores"), **options)
        with open(png, "rb") as file:
            self.assertEqual(file.read(4), b"\x89PNG")
        with open(md, encoding="utf-8") as file:
            return file.read()

    def read(self, rows):
        rows = report.read_rows([self.write("rows.csv", rows)])
        report.add_labels(rows)
        return rows

    def test_a_row_for_each_mixer_and_size_a_column_for_each_length(self):
        ovq = [row("ovq", length, size) for size in ("0.3x", "1024", "128")
               for length in (1024, 512)]
        ovq[0]["accuracy"] = 0.98765
        text = self.report(ovq, [row("kvm", 1024, "256")], [row("vq", 512, error="")], [row("full", 512), row("full", 2048)],
                           trained_length=512)
        accuracy, memory = text.split("Bytes of a session's state")
        self.assertEqual([line for line in accuracy.splitlines() if line.startswith("|")],
                         ["| | 512 | 1024 | 2048 |", "|---|---:|---:|---:|",
                          "| full | 50.0 ± 1.2 |  | 50.0 ± 1.2 |", "| vq | 50.0 |  |  |",
                          "| ovq N=128 | 50.0 ± 1.2 | 50.0 ± 1.2 |  |",
                          "| ovq N=1024 | 50.0 ± 1.2 | 50.0 ± 1.2 |  |",
                          "| ovq n=0.3T | 50.0 ± 1.2 | 98.8 ± 1.2 |  |",
                          "| kvm N=256 |  | 50.0 ± 1.2 |  |"])
        self.assertIn("| full | 1,512 |  | 3,048 |", memory)

    def test_models_are_named_where_one_task_has_several(self):
        rows = self.read([row("ovq", 512, "64", model="a"), row("ovq", 512, "64", model="b"),
                          row("full", 512),
                          row("full", 512, model="c", task="positional_icr"),
                          row("ovq", 512, "64", ablation="linear_growth")])
        self.assertEqual([row["label"] for row in rows],
                         ["ovq N=64 (a, server)", "ovq N=64 (b, server)", "full", "full",
                          "ovq linear growth N=64"])

    def test_seeds_are_one_line_of_their_median(self):
        rows = [[row("ovq", length, "64", model=f"seed-{i}", accuracy=accuracy + length / 10240, error=0.01)
                 for length in (512, 1024)] for i, accuracy in enumerate((0.75, 0.5, 0.55))]
        alone = row("ovq", 512, "64", ablation="linear_growth", error=0.01)
        documents = [row("ovq", 512, "64", model=model, task="python_documents", accuracy="", bits_per_byte=bits)
                     for model, bits in (("a", 1.5), ("b", 1.25))]
        text = self.report(*rows, [alone, *documents], seeds=True)
        self.assertIn("| ovq N=64, 3 seeds | 60.0 (55.0 to 80.0) | 65.0 (60.0 to 85.0) |", text)
        self.assertIn("| ovq linear growth N=64 | 50.0 ± 1.0 |  |", text)
        self.assertIn("| ovq N=64, 2 seeds | 1.375 (1.250 to 1.500) |", text)
        self.assertIn("of several seeds, their median (and range)", text)
        merged = report.merge_seeds(report.read_rows([self.write(f"{i}.csv", part) for i, part in enumerate(rows)]))
        (line,) = report.length_lines(merged, "accuracy")
        for point, (x, y, below, above) in zip(line.points, ((509, 0.6, 0.05, 0.2), (1021, 0.65, 0.05, 0.2))):
            self.assertEqual(point[0], x)
            for got, expected in zip((point[1], *point[2]), (y, below, above)):
                self.assertAlmostEqual(got, expected)

    def test_panels_of_tasks(self):
        icl = [row("ovq", length, "64", task="linear_icl", seen=seen, scored=scored)
               for length in (512, 1024)
               for seen, scored in (("", 400), (0, 200), (1, 180), (2, 9))]
        documents = [row("ovq", 512, "64", task="python_documents", position=position,
                         accuracy="", bits_per_byte=1.5) for position in ("", 128, 256, 512)]
        rows = self.read([row("ovq", 512, "64"), *icl, *documents])
        panels = report.make_panels(rows, None, 256)
        self.assertEqual([(panel.title, panel.x_label, panel.y_label, panel.mark)
                          for panel in panels],
                         [("basic_icr", "length in tokens", "accuracy", 256),
                          ("linear_icl, 1024 tokens", "examples of the function seen", "accuracy",
                           None),
                          ("python_documents, 512 tokens", "position in bytes", "bits per byte",
                           256),
                          ("memory of a session, basic_icr", "length in tokens", "bytes", None)])
        # too few functions were queried a third time
        self.assertEqual([point[0] for point in panels[1].lines[0].points], [0, 1])
        self.assertEqual(panels[2].lines[0].points,
                         [(128, 1.5, 0.0125), (256, 1.5, 0.0125), (512, 1.5, 0.0125)])
        self.assertEqual([line.label for line in panels[3].lines], ["ovq N=64", "full KV cache"])
        text = self.report([*icl, *documents])
        self.assertIn("| ovq N=64 | 50.0 ± 1.2 | 50.0 ± 1.2 |", text)
        self.assertIn("Bits per byte", text)
        self.assertIn("| ovq N=64 | 1.500 ± 0.013 |", text)
        shorter = report.make_panels(rows, 600, None)
        self.assertEqual(shorter[1].title, "linear_icl, 512 tokens")
        with self.assertRaisesRegex(ValueError, "--group-length: linear_icl .* 512, 1024"):
            report.make_panels(rows, 99, None)

    def test_other_files_are_refused(self):
        path = self.path("other.csv")
        with open(path, "w", encoding="utf-8") as file:
            file.write("mixer,centroids\novq,64\n")
        with self.assertRaisesRegex(ValueError, "other.csv: no column 'bits_per_byte'"):
            report.read_rows([path])
        with self.assertRaisesRegex(ValueError, "none.csv: no rows"):
            report.read_rows([self.write("none.csv", [])])


class CommandTest(unittest.TestCase):
    def test_every_command_has_help(self):
        for name in ("score", "report", "reproduce"):
            shown = subprocess.run(
                [sys.executable, os.path.join(support.TRAINING, f"{name}.py"), "--help"],
                capture_output=True, text=True, check=True)
            self.assertIn("usage:", shown.stdout)


class ReproduceTest(Folder):
    def checkpoint(self, **changes):
        os.makedirs(self.path("ovq"), exist_ok=True)
        saved = {"args": {"minutes": 0.0, "steps": 10}, "step": 10, "seconds": 3.0}
        torch.save({**saved, **changes}, self.path("ovq", CHECKPOINT))
        return self.path("ovq", CHECKPOINT)

    def test_a_finished_run_is_known(self):
        self.assertFalse(reproduce.finished(self.path("ovq", CHECKPOINT)))
        self.assertTrue(reproduce.finished(self.checkpoint()))
        self.assertFalse(reproduce.finished(self.checkpoint(step=9)))
        timed = {"minutes": 2.0, "steps": 0}
        self.assertFalse(reproduce.finished(self.checkpoint(args=timed, seconds=119.0)))
        self.assertTrue(reproduce.finished(self.checkpoint(args=timed, seconds=121.0)))

    def test_another_recipe_needs_another_folder(self):
        recipe = {"config": {"vocab_size": 9}, "training": {"steps": 10}, "score": {"sequences": 4}}
        reproduce.keep_recipe(recipe, self.path("out"))
        reproduce.keep_recipe({**recipe, "score": {}}, self.path("out"))
        with self.assertRaisesRegex(ValueError, "recipe.json is of another recipe"):
            reproduce.keep_recipe({**recipe, "training": {"steps": 11}}, self.path("out"))

    def test_a_wrong_option_of_score_shows_before_the_training(self):
        recipe = self.path("bad.json")
        with open(recipe, "w", encoding="utf-8") as file:
            json.dump({"config": support.tiny_config(), "score": {"centroid": [0]}}, file)
        ran = subprocess.run(
            [sys.executable, os.path.join(support.TRAINING, "reproduce.py"), recipe, "--out",
             self.path("out"), "--server", sys.executable], capture_output=True, text=True,
            check=False)
        self.assertEqual(ran.returncode, 2)
        self.assertIn("centroid", ran.stderr)
        self.assertFalse(os.path.exists(self.path("out")))

    def test_a_failed_training_is_named_and_ends_the_others(self):
        recipe = self.path("bad.json")
        with open(recipe, "w", encoding="utf-8") as file:
            json.dump({"config": support.tiny_config(), "training": {"steps": 1},
                       "task": {"name": "basic_icr", "n_symbols": 300}}, file)
        os.makedirs(self.path("out"))
        args = argparse.Namespace(recipe=recipe, out=self.path("out"), mixers=["ovq", "full"],
                                  device="cpu", data_root=self.folder)
        started = []

        class Recorded(reproduce.Training):
            def __init__(self, *arguments):
                super().__init__(*arguments)
                started.append(self.process)

        with mock.patch.object(reproduce, "Training", Recorded), \
                mock.patch("builtins.print"), \
                self.assertRaisesRegex(reproduce.ReproduceError,
                                       r"training (ovq|full) failed, see .*\.log: train.py: vocab"):
            reproduce.train_all(args)
        self.assertTrue(all(process.poll() is not None for process in started))


if __name__ == "__main__":
    unittest.main()
