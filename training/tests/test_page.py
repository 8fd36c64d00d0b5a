"""The commands of docs/results.md and docs/results-log.md as parts of a run: which there are, and that each runs once."""

import os
import re
import subprocess
import tempfile
import unittest

import support  # noqa: F401  the path of the modules

import page

TEXT = """# A page

## First

Words.

<!-- reproduce: small, 2 min -->

    echo one \\
        two >>said

    echo three >>said

Not run:

    echo four >>said

<!-- reproduce: headline, 90 min -->

    echo five >>said

## Second

<!-- reproduce: small, ~1 min -->

    false
    echo six >>said
"""


def pages_text():
    texts = []
    for name in page.PAGES:
        with open(name, encoding="utf-8") as file:
            texts.append(file.read())
    return "\n".join(texts)


class PageTest(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.out = os.path.join(self._folder.name, "out")

    def said(self):
        with open(os.path.join(self._folder.name, "said"), encoding="utf-8") as file:
            return file.read()

    def run_all(self, parts):
        page.run_all(parts, self.out, self._folder.name)

    def test_parts_are_the_marked_blocks(self):
        first, second, third = page.parts(TEXT)
        self.assertEqual((first.name, first.scale, first.minutes), ("First", "small", 2))
        self.assertEqual(first.script, "echo one \\\n    two >>said\n\necho three >>said\n")
        self.assertEqual((second.name, second.scale), ("First (2)", "headline"))
        self.assertEqual((third.name, third.minutes), ("Second", 1))
        self.assertEqual([part.reckoned for part in (first, second, third)], [False, False, True])
        self.assertEqual(list(page.describe([second, third], self.out)),
                         ["   90 min  headline        First (2)", "   ~1 min  small           Second",
                          "   91 min  in all, of one core, ~ where reckoned and not measured"])

    def test_what_ended_well_is_not_repeated(self):
        first, second, _ = page.parts(TEXT)
        self.run_all([first])
        self.run_all([first, second])
        self.assertEqual(self.said(), "one two\nthree\nfive\n")
        self.assertIn("done", next(page.describe([first], self.out)))

    def test_a_failure_ends_all_and_is_run_again(self):
        _, second, third = page.parts(TEXT)
        for _ in range(2):
            with self.assertRaisesRegex(page.PageError, "^Second: ended with 1, see "):
                self.run_all([third, second])
        self.assertFalse(os.path.exists(os.path.join(self._folder.name, "said")))

    def test_marks_that_are_wrong(self):
        for mark, message in (("reproduce: tiny, 3 min", "line 1: expected .* got '<!-- reproduce: tiny"),
                              ("reproduce: small, soon", "line 1: expected"),
                              ("reproduce: small, 3 min", "line 1: no commands behind")):
            with self.assertRaisesRegex(page.PageError, message):
                page.parts(f"<!-- {mark} -->\n\nWords.\n")

    def test_the_page_itself(self):
        """Every part is a script that bash can parse, whose programs and folders exist."""
        small, everything = page.read_parts("small"), page.read_parts("headline")
        self.assertGreater(len(everything), len(small))
        for part in everything:
            subprocess.run(["bash", "-n", "-c", part.script], check=True)
            for name in re.findall(r"(\w+\.py)", part.script):
                self.assertTrue(os.path.exists(os.path.join(os.path.dirname(page.__file__), name)), name)
            for model in re.findall(r"\.\./models/([\w-]+)[ /]", part.script):
                self.assertTrue(os.path.isdir(os.path.join(os.path.dirname(page.PAGES[0]), "..", "models", model)), model)

    def test_the_page_says_how_long_all_parts_take(self):
        said, = re.findall(r"some (\d+) hours of one core in all", pages_text())
        self.assertEqual(int(said), round(sum(part.minutes for part in page.read_parts("small")) / 60))

    def test_every_shipped_model_has_its_part(self):
        table = re.search(r"\| shipped \| part \|\n.*\n((\|.*\n)+)", pages_text())[1]
        made = {}
        for names, part in re.findall(r"\| (.*) \| (.*) \|", table):
            first, *others = re.findall(r"`([\w-]+)`", names)
            made.update({name: part for name in (first, *(first.rsplit("-", 1)[0] + other for other in others))})
        models = os.listdir(os.path.join(os.path.dirname(page.PAGES[0]), "..", "models"))
        self.assertEqual(sorted(made), sorted(set(models) - {"code-27m", "python-bytes", "scripted-chat"}))
        scripts = {part.name: part.script for part in page.read_parts("headline")}
        for name, part in made.items():
            self.assertRegex(scripts[part], r"reproduce\.py recipes|train\.py", name)

    def test_every_block_of_commands_is_a_part(self):
        """But for the one that runs them."""
        text = pages_text()
        scripts = "\n".join(part.script for part in page.parts(text))
        for block in re.findall(r"(?<=\n\n)(?: {4}.*\n|\n)+", text):
            first = block.strip().split("\n")[0]
            if ".py" in block and "--all --list" not in block:
                self.assertIn(first, scripts)

    def test_a_section_of_both_pages_counts_its_parts_through(self):
        seen = {}
        names = [part.name for text in (TEXT, TEXT) for part in page.parts(text, seen)]
        self.assertEqual(names, ["First", "First (2)", "Second", "First (3)", "First (4)", "Second (2)"])

    def test_a_part_that_is_not_there(self):
        with self.assertRaisesRegex(page.PageError, "--part: 'x' is no part of scale small"):
            page.read_parts("small", ["x"])


if __name__ == "__main__":
    unittest.main()
