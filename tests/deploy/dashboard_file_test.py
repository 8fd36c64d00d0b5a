"""The committed dashboard equals the output of its generator and follows the rules for readable
panels."""

import importlib.util
import json
import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCE = os.path.join(ROOT, "deploy", "grafana", "make_dashboard.py")
spec = importlib.util.spec_from_file_location("make_dashboard", SOURCE)
make_dashboard = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_dashboard)


class Dashboard(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(make_dashboard.OUTPUT) as file:
            cls.text = file.read()
        cls.dashboard = json.loads(cls.text)
        cls.panels = [panel for panel in cls.dashboard["panels"] if panel["type"] != "row"]

    def test_file_is_what_the_source_makes(self):
        self.assertEqual(self.text, make_dashboard.text(),
                         "run deploy/grafana/make_dashboard.py --write")

    def test_panels_explain_themselves(self):
        titles = [panel["title"] for panel in self.panels]
        self.assertEqual(len(set(titles)), len(titles))
        for panel in self.panels:
            self.assertGreater(len(panel["description"]), 20, panel["title"])
            self.assertTrue(panel["fieldConfig"]["defaults"]["unit"], panel["title"])

    def test_units_follow_the_metrics(self):
        """Seconds, bytes and ratios have units."""
        for panel in self.panels:
            unit = panel["fieldConfig"]["defaults"]["unit"]
            for target in panel["targets"]:
                metric = re.search(r"(?:ovq|process|scrape)_\w+", target["expr"])
                if metric is None or "seconds_total" in metric.group() or "count" in metric.group():
                    continue
                name = re.sub(r"_(bucket|sum)$", "", metric.group())
                expected = {"seconds": "s", "bytes": "bytes", "ratio": "percentunit"}.get(
                    name.rsplit("_", 1)[-1], unit)
                self.assertEqual(unit, expected, f"{panel['title']}: {name}")

    def test_panels_do_not_overlap(self):
        taken = set()
        for panel in self.dashboard["panels"]:
            place = panel["gridPos"]
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                     for y in range(place["y"], place["y"] + place["h"])}
            self.assertFalse(cells & taken, panel["title"])
            self.assertLessEqual(place["x"] + place["w"], 24)
            taken |= cells

    def test_queries_follow_the_variables(self):
        names = {variable["name"] for variable in self.dashboard["templating"]["list"]}
        self.assertEqual(names, {"datasource", "model", "instance"})
        for panel in self.panels:
            self.assertEqual(panel["datasource"]["uid"], "${datasource}")
            for target in panel["targets"]:
                self.assertIn('instance=~"$instance"', target["expr"])
                self.assertNotRegex(target["expr"], r"\[\d", "a rate uses $__rate_interval")


if __name__ == "__main__":
    unittest.main(verbosity=2)
