#!/usr/bin/env python3
"""Holds the sources to their floor plan: layers.txt, no circles, folders of a size to read.

A unit is a header with the sources of its name (x.h, x.cc, x_cpu.cc stay three files: a.cc and a.h
are one unit, nothing else is).
"""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUFFIXES = (".cc", ".h", ".cu", ".cuh")
ROOTS = ("base", "kernels", "model", "server", "clients")
MOST_UNITS = 25

# {beginning of an include in <>: its library}; other system headers are the language's.
LIBRARIES = {
    "absl/": "absl", "nlohmann/": "nlohmann", "openssl/": "openssl", "hwy/": "hwy",
    "omp.h": "omp", "cuda": "cuda", "dnnl": "dnnl", "cublas": "cublas", "dlfcn.h": "dl",
    "sentencepiece": "sentencepiece", "prometheus/": "prometheus", "grpc": "grpc",
    "google/protobuf/": "protobuf", "CLI/": "cli11", "utf8proc": "utf8proc", "utf8": "utf8cpp",
    "oniguruma": "onig", "histedit.h": "libedit", "boost/": "boost", "hiredis/": "hiredis",
}


# {folder: the namespace of its files}; the longest folder that fits a file counts.
NAMESPACES = {
    "base": "ovq", "kernels": "ovq::kernels", "model": "ovq::model",
    "model/chat_template": "ovq::jinja", "model/answers": "ovq::answers",
    "model/constraint": "ovq::constraint", "server": "ovq::server",
    "server/store": "ovq::store", "server/disk": "ovq::disk", "server/redis": "ovq::redis",
    "server/s3": "ovq::s3",
    "server/engine": "ovq::engine", "clients": "ovq::clients", "clients/load": "ovq::load",
}


def read_table(text):
    """{folder: (folders with all they may include in turn, libraries)}."""
    table = {}
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        folder, rights = line.split(":")
        folders, libraries = (part.split() for part in rights.split(";"))
        reach = {folder}
        for name in folders:
            if name not in table:
                raise ValueError(f"layers.txt: {folder} stands above {name}, which it may include")
            reach |= table[name][0]
        table[folder] = (reach, set(libraries))
    return table


def layer_of(path, table):
    fitting = [name for name in table if path == name or path.startswith(name + "/")]
    return max(fitting, key=len, default=None)


def includes(text):
    return re.findall(r'^#include [<"]([^>"]+)[>"]', text, re.MULTILINE)


def library_of(include):
    return next((name for start, name in LIBRARIES.items() if include.startswith(start)), None)


def faults_of(path, text, table):
    """Messages for the includes of a file that its layer may not have."""
    mine = layer_of(path, table)
    if mine is None:
        return [f"{path}: its folder is not in tests/layers.txt"]
    folders, libraries = table[mine]
    faults = []
    for include in includes(text):
        generated = include.startswith("ovq/v1/")
        layer = "proto" if generated else layer_of(include, table)
        if layer is not None and (generated or include.startswith(ROOTS)):
            if layer not in folders:
                faults.append(f"{path}: {mine} may not include {layer} ({include})")
        elif include.startswith("tests/"):
            faults.append(f"{path}: a product may not include {include}")
        elif library_of(include) not in libraries | {None}:
            faults.append(f"{path}: {mine} may not include {library_of(include)} ({include})")
    return faults


def namespace_of(path):
    """The namespace of a product's file: its layer's, ovq itself for base."""
    layer = max((l for l in NAMESPACES if path.startswith(l + "/")), key=len)
    return NAMESPACES[layer]


def namespace_faults(path, text):
    """Messages for namespaces that are another layer's, but for forward declarations of its types."""
    mine = namespace_of(path)
    faults = []
    for name, body in re.findall(r"^namespace (ovq[\w:]*) \{\n(.*?)^\}  // namespace \1$", text,
                                 re.MULTILINE | re.DOTALL):
        declares_only = all(re.fullmatch(r"(class|struct) \w+;|", line) for line in body.splitlines())
        if name != mine and not name.startswith(mine + "::") and not declares_only:
            faults.append(f"{path}: {name} is not the namespace of its layer, {mine}")
    return faults


def unit_of(path):
    return path.rsplit(".", 1)[0]


def circle(graph):
    """A circle of units as a list, or None."""
    done, path = set(), []

    def visit(unit):
        if unit in path:
            return path[path.index(unit):] + [unit]
        if unit in done:
            return None
        path.append(unit)
        for other in sorted(graph.get(unit, ())):
            found = visit(other)
            if found:
                return found
        path.pop()
        done.add(unit)
        return None

    return next(filter(None, map(visit, sorted(graph))), None)


class FloorPlan(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.table = read_table((ROOT / "tests" / "layers.txt").read_text())
        cls.files = {str(path.relative_to(ROOT)): path.read_text()
                     for root in ROOTS for path in (ROOT / root).rglob("*")
                     if path.suffix in SUFFIXES}

    def test_every_folder_of_the_table_has_sources(self):
        self.assertEqual({layer_of(path, self.table) for path in self.files} | {"proto"},
                         set(self.table))

    def test_includes_point_down(self):
        faults = [fault for path, text in self.files.items()
                  for fault in faults_of(path, text, self.table)]
        self.assertEqual(faults, [])

    def test_each_layer_has_its_namespace(self):
        faults = [fault for path, text in self.files.items()
                  for fault in namespace_faults(path, text)]
        self.assertEqual(faults, [])

    def test_no_circle(self):
        graph = {}
        for path, text in self.files.items():
            others = {unit_of(include) for include in includes(text) if include in self.files}
            graph.setdefault(unit_of(path), set()).update(others - {unit_of(path)})
        self.assertIsNone(circle(graph))

    def test_the_walk_of_one_answer_is_short(self):
        text = (ROOT / "docs" / "architecture.md").read_text()
        walk = text.split("## The walk of one Generate")[1].split("\n## ")[0]
        rows = [line for line in walk.splitlines() if line.startswith("| `")]
        files = [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
        self.assertEqual([name for name in files if name not in self.files], [])
        self.assertTrue(30 < len(files) <= 40, len(files))

    def test_the_fuzzer_looks_at_files_that_are_there(self):
        text = (ROOT / "tests" / "fuzz" / "run.sh").read_text()
        table = text.split("declare -A files=(")[1].split("\n)")[0]
        paths = [path for names in re.findall(r'="([^"]+)"', table) for path in names.split()]
        self.assertEqual([path for path in paths if not (ROOT / path).exists()], [])
        self.assertGreater(len(paths), 20)

    def test_folders_have_a_size_to_read(self):
        units = {}
        for path in self.files:
            units.setdefault(path.rsplit("/", 1)[0], set()).add(unit_of(path))
        self.assertEqual({f: len(u) for f, u in units.items() if len(u) > MOST_UNITS}, {})


class TheChecksThemselves(unittest.TestCase):
    TABLE = read_table("low: ; absl\nmid: low; grpc\nhigh: mid; grpc\nmid/deep: ;\n")

    def test_down_is_allowed_and_up_is_not(self):
        self.assertEqual(faults_of("high/a.cc", "#include <grpc/grpc.h>\n", self.TABLE), [])
        self.assertEqual(len(faults_of("low/a.cc", "#include <grpc/grpc.h>\n", self.TABLE)), 1)
        self.assertEqual(len(faults_of("mid/deep/a.cc", '#include "absl/x.h"\n', self.TABLE)), 1)
        self.assertEqual(len(faults_of("none/a.cc", "", self.TABLE)), 1)
        self.assertEqual(len(faults_of("low/a.cc", '#include "tests/reference/a.h"\n', self.TABLE)), 1)
        table = read_table("base: ;\nmodel: base;\n")
        self.assertEqual(faults_of("model/a.cc", '#include "base/x.h"\n', table), [])
        self.assertEqual(len(faults_of("base/a.cc", '#include "model/x.h"\n', table)), 1)

    def test_a_line_above_what_it_needs_is_refused(self):
        with self.assertRaises(ValueError):
            read_table("high: low;\nlow: ;\n")

    def test_a_namespace_of_another_layer_may_only_declare(self):
        declares = "namespace ovq::model {\nclass Batch;\n}  // namespace ovq::model\n"
        defines = "namespace ovq::model {\nint x;\n}  // namespace ovq::model\n"
        self.assertEqual(namespace_faults("server/engine/a.h", declares), [])
        self.assertEqual(len(namespace_faults("server/engine/a.h", defines)), 1)
        self.assertEqual(namespace_faults("model/a.h", defines), [])

    def test_circles_are_found(self):
        self.assertEqual(circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}), ["b", "c", "b"])
        self.assertIsNone(circle({"a": {"b", "c"}, "b": {"c"}}))


if __name__ == "__main__":
    unittest.main()
