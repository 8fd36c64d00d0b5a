"""Prometheus configuration, rules and their unit tests, with promtool.

Every alert has a section in the runbook, and unit tests in which it fires and in which it does not.
"""

import concurrent.futures
import copy
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import yaml
except ImportError as error:
    print(f"SKIPPED: {error}; install python3-yaml")
    sys.exit(0)
if shutil.which("promtool") is None:
    print("SKIPPED: no promtool; install prometheus")
    sys.exit(0)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.join(ROOT, "deploy", "prometheus")
ALERTS = os.path.join(FOLDER, "rules", "alerts.yml")
UNIT_TESTS = os.path.join(FOLDER, "tests", "alerts.yml")


def load(path):
    with open(path) as file:
        return yaml.safe_load(file)


def alerts():
    return [rule for group in load(ALERTS)["groups"] for rule in group["rules"]]


def promtool(*arguments):
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60)


def sections(path):
    """Returns the anchors of a page's headings."""
    with open(os.path.join(ROOT, path)) as file:
        headings = re.findall(r"^#+ (.+)$", file.read(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


class Files(unittest.TestCase):
    def test_promtool_accepts_configuration_and_rules(self):
        rules = [os.path.join(FOLDER, "rules", name) for name in
                 sorted(os.listdir(os.path.join(FOLDER, "rules")))]
        for arguments in (["check", "config", os.path.join(FOLDER, "prometheus.yml")],
                          ["check", "rules", *rules]):
            result = promtool(*arguments)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_unit_tests_pass(self):
        names = os.listdir(os.path.join(FOLDER, "tests"))
        self.assertIn("alerts.yml", names)
        for name in names:
            result = promtool("test", "rules", os.path.join(FOLDER, "tests", name))
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


class Alerts(unittest.TestCase):
    def test_names_and_severities(self):
        names = [rule["alert"] for rule in alerts()]
        self.assertGreater(len(names), 15)
        self.assertEqual(len(set(names)), len(names))
        for rule in alerts():
            self.assertRegex(rule["alert"], r"^Ovq[A-Za-z]+$")
            self.assertIn(rule["labels"]["severity"], ("critical", "warning"), rule["alert"])

    def test_every_alert_says_what_it_means_and_where_to_read_on(self):
        known = sections("docs/operations.md")
        for rule in alerts():
            notes = rule["annotations"]
            self.assertTrue(notes["summary"] and notes["description"], rule["alert"])
            page, anchor = notes["runbook"].split("#")
            self.assertEqual((page, anchor), ("docs/operations.md", rule["alert"].lower()))
            self.assertIn(anchor, known)

    def test_every_section_of_the_runbook_is_an_alert(self):
        known = {name for name in sections("docs/operations.md") if re.fullmatch(r"ovq[a-z]+", name)}
        self.assertEqual(known, {rule["alert"].lower() for rule in alerts()})


class Mutants(unittest.TestCase):
    """The unit tests must fail if an alert never fires, and if it always fires."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="ovq_rules_test_")
        cls.addClassCleanup(shutil.rmtree, cls.folder)

    def passes(self, name, expr):
        """True if the unit tests of one alert still pass with another expression."""
        folder = tempfile.mkdtemp(dir=self.folder)
        rules = load(ALERTS)
        for group in rules["groups"]:
            for rule in group["rules"]:
                if rule["alert"] == name:
                    rule["expr"] = expr
                    rule.pop("for", None)
        tests = copy.deepcopy(load(UNIT_TESTS))
        tests["tests"] = [test for test in tests["tests"] if name in test["name"].split(" and ")]
        self.assertEqual(len(tests["tests"]), 1, f"{name} has no unit test of its name")
        tests["rule_files"] = [os.path.join(FOLDER, "rules", "recording.yml"), "alerts.yml"]
        for file_name, content in (("alerts.yml", rules), ("test.yml", tests)):
            with open(os.path.join(folder, file_name), "w") as file:
                yaml.safe_dump(content, file)
        result = promtool("test", "rules", os.path.join(folder, "test.yml"))
        self.assertIn(result.returncode, (0, 1), result.stderr)
        return result.returncode == 0

    def test_every_alert_is_seen_to_fire_and_to_keep_quiet(self):
        names = [rule["alert"] for rule in alerts()]
        mutants = [(name, expr) for name in names for expr in ("vector(0) > 1", "vector(1)")]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            survived = [mutant for mutant, passed in
                        zip(mutants, pool.map(lambda mutant: self.passes(*mutant), mutants)) if passed]
        self.assertEqual(survived, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
