"""The tables of README.md and docs/results.md, and their texts of what the models show, have the figures of the CSVs that they name."""

import csv
import os
import tempfile
import unittest
from unittest import mock

import support  # noqa: F401  the path of the modules

import cells
import page
from scoring import COLUMNS, EACH_COLUMNS

TEXT = r"""# A page

<!-- csv: one.csv sequences=8
.* \| (\d+): length=\1
ovq N=(\d+) .*: centroids=\1
.* \| bytes: length=2048 state_bytes
-->

| | 1,024 | 2,048 | bytes |
|---|---:|---:|---:|
| ovq N=512 | 99.7 ± 0.3 | **81.5 ± 2.1**, 1.3 MB | 1,282,048 |
| ovq N=16 | | | |

| told | how |
|---|---|
| words | 3 |

## Said

A model of 0.7M parameters (arXiv 2404.14469, as [told](a.md#4.4)) has 81.5 ± 2.1% of 2,048
tokens in 1.3 MB, and 100% of 1,024.

    echo 4.5%

<!-- figures: one.csv centroids=512
81.5 ± 2.1: length=2048
1.3 MB: length=2048
100: length=1024
-->

## Other

Figures such as 12.5% are not traced here.
"""


class CellsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(cells._rows.cache_clear)
        cells._rows.cache_clear()
        patch = mock.patch.object(cells, "RESULTS", folder.name)
        patch.start()
        self.addCleanup(patch.stop)
        with open(os.path.join(folder.name, "one.csv"), "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            for length, accuracy, error in ((1024, 0.99743, 0.0026), (2048, 0.81511, 0.02094)):
                row = {"length": length, "centroids": 512, "sequences": 8, "accuracy": accuracy, "error": error, "state_bytes": 1282048}
                writer.writerows([row, {**row, "seen": 3}])

    def faults(self, *changes, whole=True):
        text = TEXT
        for old, new in changes:
            self.assertIn(old, text)
            text = text.replace(old, new)
        return list(cells.faults(text, whole))

    def test_a_table_that_agrees(self):
        self.assertEqual(self.faults(), [])

    def test_what_differs_is_named(self):
        for change, fault in (
                (("99.7 ±", "99.8 ±"), "ovq N=512 | 1024: '99.8 ± 0.3', but one.csv has 99.7 ± 0.3"),
                (("99.7 ± 0.3", "99.7"), "ovq N=512 | 1024: '99.7', but one.csv has 99.7 ± 0.3"),
                (("1.3 MB", "1.2 MB"), "ovq N=512 | 2048: '81.5 ± 2.1, 1.2 MB', but one.csv has 1.3 MB"),
                (("1,282,048", "1,282,049"), "ovq N=512 | bytes: '1282049', but one.csv has 1282048"),
                (("99.7 ± 0.3", "99.7 ± 0.3†"), "ovq N=512 | 1024: '99.7 ± 0.3†', but one.csv has 99.7 ± 0.3")):
            self.assertEqual(self.faults(change), [fault])

    def test_a_cell_without_a_row_or_with_several(self):
        for cell in ("5.0 ± 1.0", "5.0 ± 1.0†"):  # no mark excuses a cell that cannot be traced
            fault, = self.faults(("N=16 | |", f"N=16 | {cell} |"))
            self.assertRegex(fault, r"^ovq N=16 \| 1024: 0 rows of one\.csv have .*'centroids': '16'")
        self.assertRegex(self.faults(("length=\\1", ""))[0], r"^ovq N=512 \| 1024: 2 rows of one\.csv")
        self.assertEqual(self.faults(("one.csv", ""))[0], "no line of the comment names a CSV for 'ovq N=512 | 1024'")

    def test_a_word_that_is_no_column(self):
        self.assertIn("'size', which is told of 'ovq N=512 | 1024', is no column of a CSV", self.faults(("sequences=8", "size=8")))
        self.assertIn("'bytes', which is told of 'ovq N=512 | 1024', is no column of a CSV", self.faults(("sequences=8", "bytes")))

    def test_a_table_without_a_comment(self):
        self.assertEqual(self.faults(("<!-- csv: one.csv", "<!-- cvs: one.csv")), ["ovq N=512 | 1024: the table has no comment that names its CSV"])
        self.assertEqual(self.faults(("<!-- csv: one.csv", "<!-- cvs: one.csv"), whole=False), [])

    def test_the_median_of_seeds(self):
        with open(os.path.join(cells.RESULTS, "seeds.csv"), "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            for seed, accuracy, bits in ((0, 0.5, 2.5), (1, 0.25, 2.25), (2, 0.3, 2.3)):
                writer.writerow({"model": f"ovq-{seed}", "length": 64, "accuracy": accuracy})
                writer.writerow({"model": f"ovq-{seed}", "length": 128, "bits_per_byte": bits})
        rules = "seeds.csv seeds model=ovq-*\n.*64: length=64\n.*bits: length=128\n.*one: length=64 model=ovq-0\n"
        cells.check(rules, "ovq | 64", "30.0 (25.0 to 50.0)")
        cells.check(rules, "ovq | bits", "2.300 (2.250 to 2.500)")
        with self.assertRaisesRegex(cells.CellError, r"^ovq \| 64: '25\.0 \(25\.0 to 50\.0\)', but seeds\.csv has 30\.0 \(25\.0 to 50\.0\)$"):
            cells.check(rules, "ovq | 64", "25.0 (25.0 to 50.0)")
        for place in ("ovq | one", "ovq | both"):  # one row, and two rows of each model
            with self.assertRaisesRegex(cells.CellError, "but seeds are several models with a row each"):
                cells.check(rules, place, "30.0 (25.0 to 50.0)")

    def test_a_paired_difference(self):
        for name, sums in (("first", (6, 8)), ("second", (5, 5))):
            with open(os.path.join(cells.RESULTS, f"{name}-each.csv"), "w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(EACH_COLUMNS)
                writer.writerows((64, "8", "", "", i, 10, total) for i, total in enumerate(sums))
        rules = "length=64\n.*: first-each.csv second-each.csv\n"
        cells.check(rules, "gain", "+20.0 ± 10.0")
        with self.assertRaisesRegex(cells.CellError, r"^gain: '\+20\.1 ± 10\.0', but first-each\.csv less second-each\.csv is \+20\.0 ± 10\.0$"):
            cells.check(rules, "gain", "+20.1 ± 10.0")
        for old, new in (("length=64", "length=65"), ("second-each", "third-each"), (" second-each.csv", "")):
            with self.assertRaisesRegex(cells.CellError, "^first-each.csv"):
                cells.check(rules.replace(old, new), "gain", "+20.0 ± 10.0")

    def figure_faults(self, *changes, title="Said"):
        text = TEXT
        for old, new in changes:
            self.assertIn(old, text)
            text = text.replace(old, new)
        return list(cells.figure_faults(text, title))

    def test_figures_that_agree(self):
        self.assertEqual(self.figure_faults(), [])

    def test_a_figure_that_no_comment_names(self):
        self.assertEqual(self.figure_faults(("and 100%", "and 82% here, 64.25 there, 100%")),
                         ["Said: no comment names the row of '64.25'", "Said: no comment names the row of '82'"])
        self.assertEqual(self.figure_faults(title="Other"), ["Other: no comment names the row of '12.5'"])

    def test_a_figure_that_differs_from_its_row(self):
        for change, fault in ((("81.5 ± 2.1", "81.5 ± 2.2"), "'81.5 ± 2.2': one.csv has 2.1"),
                              (("81.5 ± 2.1", "81.6 ± 2.1"), "'81.6 ± 2.1': one.csv has 81.5"),
                              (("1.3 MB", "1.4 MB"), "'1.4 MB': one.csv has 1.3"),
                              (("1.3 MB: length=2048", "1.3 MB: length=4096"), "1.3 MB: 0 rows of one.csv have "),
                              (("and 100%", "and nothing"), "the text does not have the '100' of a comment")):
            faults = self.figure_faults(change)
            self.assertEqual(len(faults), 1, faults)
            self.assertTrue(faults[0].startswith(f"Said: {fault}"), faults[0])

    def test_a_traced_section_has_no_table_without_a_comment(self):
        table = "| | 1,024 |\n|---|---:|\n| ovq | 99.7 |\n"
        self.assertEqual(self.figure_faults(("    echo 4.5%\n", table)), ["Said: the table of 'ovq | 1024' has no comment that names its CSV"])

    def test_a_section_that_is_not_there(self):
        self.assertEqual(self.figure_faults(title="Unsaid"), ["no section has the title 'Unsaid'"])


TRACED = {"README.md": ("What a bounded memory can do", "Sessions and memory"), "docs/results.md": ("Beside the paper",)}


class PagesTest(unittest.TestCase):
    def test_the_figures_of_the_texts(self):
        """Every figure of the sections that say what the models show."""
        cells._rows.cache_clear()
        root = os.path.dirname(os.path.dirname(page.PAGES[0]))
        for name, titles in TRACED.items():
            with open(os.path.join(root, name), encoding="utf-8") as file:
                text = file.read()
            for title in titles:
                self.assertEqual(list(cells.figure_faults(text, title)), [], name)

    def test_the_pages(self):
        """All tables of the pages of results and of minutes; of the others those that name a CSV."""
        cells._rows.cache_clear()
        results, log, minutes = page.PAGES
        readme = os.path.join(os.path.dirname(os.path.dirname(results)), "README.md")
        for path in (results, log, minutes, readme):
            with open(path, encoding="utf-8") as file:
                self.assertEqual(list(cells.faults(file.read(), whole=path in (results, minutes))), [], path)


if __name__ == "__main__":
    unittest.main()
