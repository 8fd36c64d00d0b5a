"""The tables of README.md and docs/results.md have the figures of the CSVs that they name."""

import csv
import os
import tempfile
import unittest
from unittest import mock

import support  # noqa: F401  the path of the modules

import cells
import page
from scoring import COLUMNS

TEXT = r"""# A page

<!-- csv: one.csv sequences=8
.* \| (\d+): length=\1
ovq N=(\d+) .*: centroids=\1
.* \| bytes: length=2048 state_bytes
-->

| | 1,024 | 2,048 | bytes |
|---|---:|---:|---:|
| ovq N=512 | 99.7 ± 0.3 | **81.5 ± 2.1**, 1.3 MB | 1,282,048 |
| ovq N=16 | 5.0 ± 1.0† | | |

| told | how |
|---|---|
| words | 3 |
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
        self.assertRegex(self.faults(("1.0†", "1.0"))[0], r"^ovq N=16 \| 1024: 0 rows of one\.csv have .*'centroids': '16'")
        self.assertRegex(self.faults(("length=\\1", ""))[0], r"^ovq N=512 \| 1024: 2 rows of one\.csv")
        self.assertEqual(self.faults(("one.csv", ""))[0], "no line of the comment names a CSV for 'ovq N=512 | 1024'")

    def test_a_word_that_is_no_column(self):
        """A dagger does not hide it."""
        self.assertIn("'size', which is told of 'ovq N=16 | 1024', is no column of a CSV", self.faults(("sequences=8", "size=8")))
        self.assertIn("'bytes', which is told of 'ovq N=16 | 1024', is no column of a CSV", self.faults(("sequences=8", "bytes")))

    def test_a_table_without_a_comment(self):
        self.assertEqual(self.faults(("<!-- csv: one.csv", "<!-- cvs: one.csv")), ["ovq N=512 | 1024: the table has no comment that names its CSV"])
        self.assertEqual(self.faults(("<!-- csv: one.csv", "<!-- cvs: one.csv"), whole=False), [])


class PagesTest(unittest.TestCase):
    def test_the_pages(self):
        """All tables of the page of results; of the others those that name a CSV."""
        cells._rows.cache_clear()
        results, log = page.PAGES
        readme = os.path.join(os.path.dirname(os.path.dirname(results)), "README.md")
        for path in (results, log, readme):
            with open(path, encoding="utf-8") as file:
                self.assertEqual(list(cells.faults(file.read(), whole=path == results)), [], path)


if __name__ == "__main__":
    unittest.main()
