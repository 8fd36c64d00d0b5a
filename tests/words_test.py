#!/usr/bin/env python3
"""Holds the sources to docs/glossary.md: retired words, comments without a subject, sizes of classes and functions."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRODUCT = ("base", "kernels", "model", "server", "clients")
CPP = (".cc", ".h", ".cu", ".cuh")

# Identifiers that the glossary retired, as patterns of whole names. {pattern: what to say}
RETIRED = {
    r"Job|jobs?_": "Request", r"Foresight|Ahead": "LookAhead", r"Overwrites|WritesApart": "UndoExtents, CanUndoSuffix",
    r"KeepRows": "AcceptDrafts", r"StepBatch|StagedStep|LayerStep|\w+Step(?:Seqs|Tensors)?": "Batch or Args",
    r"EngineMemory|FindMemory|MemoryOf|MemoryName|kMemories": "ModelVariant, CachePolicy",
    r"LetGo|SetAside|AskedFor|TakeOver|MoveOut|MakeWay": "ReleaseOwnership, Quarantine, AcquireOwnership, SwapOut, Evict",
    r"key_keys|key_values|conv_taps|n_logit_rows|logit_rows": "h_kk, h_kv, conv_size, logits_indices",
    r"[A-Z]\w*[a-z]Of": "a verb phrase or a noun phrase", r"Take(?:[A-Z]\w*)?": "the verb that it is",
    r"copy_bytes_per_turn|kSegmentBlocks|kLowest": "copy_bytes_per_iteration, kCpuSegmentBlocks, kMaskedScore",
}
# Names that are somebody else's or mean what they say.
ALLOWED = {"Jobs", "ListOf", "SizeOf", "IndexOf", "HashOf"}
# A comment that begins so has no subject, or has it a line later.
RIDDLE = re.compile(r"(?:What|Of|The same|As|Whose|Those) ")

MOST_METHODS = 25
MOST_LINES = 70
# Classes and functions that are larger, and by how much: an entry may fall and go, nothing may be added.
LARGE_CLASSES = {}
LARGE_FUNCTIONS = {}

TOKEN = re.compile(r'R"(\w*)\((?:.|\n)*?\)\1"|//[^\n]*|/\*(?:.|\n)*?\*/|"(?:\\.|[^"\\\n])*"|'
                   r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)


def code_of(text):
    """The text with comments, strings and preprocessor lines blanked; lines stay where they are."""
    return TOKEN.sub(lambda match: re.sub(r"[^\n]", " ", match.group(0)), text)


def comments(text):
    """[(line, first words)] of the comments of C++; lines that follow one another are one comment."""
    found, last = [], None
    for match in TOKEN.finditer(text):
        if not match.group(0).startswith(("//", "/*")):
            continue
        line = text.count("\n", 0, match.start()) + 1
        column = match.start() - (text.rfind("\n", 0, match.start()) + 1)
        own = not text[match.start() - column:match.start()].strip()
        if not (own and last == (line - 1, column)):
            found.append((line, match.group(0).lstrip("/* ").rstrip()))
        last = (line, column)
    return found


def python_comments(text):
    """[(line, first words)] of comments on lines of their own and of docstrings."""
    found, before = [], False
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*(?:#+!?|"""|\'\'\')\s*(.*)', line)
        if match and not (before and line.lstrip().startswith("#")):
            found.append((number, match.group(1)))
        before = line.lstrip().startswith("#")
    return found


def functions(text):
    """[(name, lines)] of the functions that are defined at namespace or class level."""
    code, found, stack, begin, line, depth = code_of(text), [], [], 0, 1, 0
    for i, char in enumerate(code):
        if char == "\n":
            line += 1
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == ";" and depth == 0:
            begin = i + 1
        elif char == "{":
            head = " ".join(code[begin:i].split())
            outer, kind, name = stack[-1][0] if stack else "scope", "other", ""
            if outer == "scope":
                if (re.search(r"\bnamespace\b", head) and "(" not in head) or head.startswith("extern") or \
                        re.match(r"(?:template ?<.*?> ?)?(?:class|struct|union)\b[^(]*$", head):
                    kind = "scope"
                elif "(" in head and not head.endswith("=") and not head.startswith("enum"):
                    kind = "function"
                    name = (re.search(r"([~\w:]+|operator\S+)\s*\(", head) or [head, head])[1]
            stack.append((kind, name, line, depth))
            begin, depth = i + 1, 0
        elif char == "}" and stack:
            kind, name, first, depth = stack.pop()
            begin = i + 1
            if kind == "function":
                found.append((name, line - first + 1))
    return found


def classes(text):
    """[(name, number of methods)]: public and private, without constructors and destructors."""
    code, found = code_of(text), []
    for match in re.finditer(r"\b(?:class|struct)\s+(?:alignas\([^)]*\)\s*)?(\w+)(?:\s+final)?\s*(?::[^;{()]*)?\{", code):
        name, depth, body = match[1], 0, []
        for char in code[match.end() - 1:]:
            depth += (char == "{") - (char == "}")
            if depth == 0:
                break
            if char == "}" and depth == 1:
                body.append(";")
            elif depth == 1 and char != "{":
                body.append(char)
        methods = 0
        for part in re.split(r";|\b(?:public|private|protected)\s*:", "".join(body)):
            part = re.sub(r"^template ?<[^()]*?> ", "", " ".join(part.split()))
            call = re.search(r"(~?\w+|operator\s*\S+?)\s*\(", part)
            if not call or re.match(r"(?:using|friend|typedef|static_assert|enum|struct|class)\b", part):
                continue
            before = part[:call.start()]
            if "=" in before or not before.strip() or call[1].lstrip("~") == name or \
                    before.count("<") != before.count(">") or re.search(r"= (?:delete|default)$", part):
                continue
            methods += 1
        found.append((name, methods))
    return found


def sources(suffixes, roots):
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
            for root in roots for path in sorted((ROOT / root).rglob("*")) if path.suffix in suffixes}


class Words(unittest.TestCase):
    def test_retired_identifiers_are_gone(self):
        found = []
        for path, text in sources(CPP, PRODUCT).items():
            names = set(re.findall(r"\b[A-Za-z_]\w*\b", code_of(text))) - ALLOWED
            found += [f"{path}: {name}: say {say}" for pattern, say in RETIRED.items()
                      for name in sorted(names) if re.fullmatch(pattern, name)]
        self.assertEqual(found, [], "\n".join(found))

    def test_comments_have_a_subject(self):
        found = [f"{path}:{line}: {words[:60]}"
                 for path, text in sources(CPP, PRODUCT + ("tests",)).items()
                 for line, words in comments(text) if RIDDLE.match(words)]
        found += [f"{path}:{line}: {words[:60]}"
                  for path, text in sources((".py",), ("clients", "training", "tests")).items()
                  for line, words in python_comments(text) if RIDDLE.match(words)]
        self.assertEqual(found, [], "\n".join(found))


class Sizes(unittest.TestCase):
    def test_classes(self):
        large = {f"{path} {name}": n for path, text in sources(CPP, PRODUCT).items()
                 for name, n in classes(text) if n > MOST_METHODS}
        self.maxDiff = None
        self.assertEqual(large, LARGE_CLASSES)

    def test_functions(self):
        large = {f"{path} {name}": n for path, text in sources(CPP, PRODUCT).items()
                 for name, n in functions(text) if n > MOST_LINES}
        self.assertEqual(large, LARGE_FUNCTIONS)


class TheChecksThemselves(unittest.TestCase):
    def test_comments(self):
        text = 'int a;  // Of b.\n// One\n// What two.\nint c = "// no";\n'
        self.assertEqual(comments(text), [(1, "Of b."), (2, "One")])
        self.assertEqual(python_comments('# One\n# What two\n"""Of three."""\n'), [(1, "One"), (3, 'Of three."""')])

    def test_functions_and_methods(self):
        text = ("namespace n {\nclass A : public B {\n public:\n  A();\n  int f() const { return 1; }\n  void g(int x);\n"
                "  std::function<void(int)> h;\n  int i = F(1);\n};\nint A::g(int x) {\n  if (x) {\n  }\n}\n}\n")
        self.assertEqual(classes(text), [("A", 2)])
        self.assertEqual(functions(text), [("f", 1), ("A::g", 4)])


if __name__ == "__main__":
    unittest.main()
