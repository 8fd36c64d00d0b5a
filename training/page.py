"""Runs the commands of docs/results.md, docs/results-log.md and docs/results-minutes.md in their order, which makes all tables and figures anew.

A block of commands that stands behind `<!-- reproduce: SCALE, MINUTES min -->` is a part of its page; `~` before
the minutes says that they are reckoned from tokens and speed, as the commands were not run in one piece.
Others show a form of a command. A part runs in this folder, by bash, and ends at its first failure; one that
came to its end is not repeated until its commands change.
"""

import dataclasses
import hashlib
import os
import re
import subprocess
import time

SCALES = ("small", "headline")
_FOLDER = os.path.dirname(os.path.abspath(__file__))
PAGES = tuple(os.path.join(os.path.dirname(_FOLDER), "docs", name) for name in ("results.md", "results-log.md", "results-minutes.md"))
_MARK = re.compile(r"<!-- reproduce: (.*) -->")
_MARK_FORM = re.compile(r"(\w+), (~?)(\d+) min$")


class PageError(ValueError):
    """The page, or a part that was asked for, is invalid."""


@dataclasses.dataclass(frozen=True)
class Part:
    """One block of commands. minutes: of one core, as measured when its figures were made, or reckoned."""
    name: str  # the section's title, and a number where it has several; a title of both pages is one section
    scale: str
    minutes: int
    script: str
    reckoned: bool = False

    @property
    def stamp(self):
        """Name of the file that records that these commands have succeeded."""
        return hashlib.sha256(self.script.encode()).hexdigest()[:16]


def _indented(lines, begin):
    """Returns the first block of indented lines from lines[begin] on, without the indent."""
    while begin < len(lines) and not lines[begin].strip():
        begin += 1
    block = []
    for line in lines[begin:]:
        if line.strip() and not line.startswith("    "):
            break
        block.append(line[4:])
    return "\n".join(block).rstrip() + "\n" if any(line.strip() for line in block) else None


def parts(text, seen=None):
    """All parts of a page, in its order. seen: how many parts each section had on the pages before; it is counted on."""
    found, title = [], ""
    seen = {} if seen is None else seen
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if line.startswith("#"):
            title = line.lstrip("# ")
        mark = _MARK.match(line)
        if not mark:
            continue
        form = _MARK_FORM.match(mark[1])
        if not form or form[1] not in SCALES:
            raise PageError(f"line {i + 1}: expected '<!-- reproduce: {' or '.join(SCALES)}, [~]MINUTES min -->', "
                            f"got '{line}'")
        script = _indented(lines, i + 1)
        if script is None:
            raise PageError(f"line {i + 1}: no commands behind '{line}'")
        seen[title] = seen.get(title, 0) + 1
        name = title if seen[title] == 1 else f"{title} ({seen[title]})"
        found.append(Part(name, form[1], int(form[3]), script, bool(form[2])))
    return found


def read_parts(scale, only=(), pages=PAGES):
    """The parts of a scale (`headline` has the small ones, too), or those named by `only`. Raises PageError."""
    found, seen = [], {}
    for page in pages:
        with open(page, encoding="utf-8") as file:
            found += [part for part in parts(file.read(), seen) if scale == "headline" or part.scale == scale]
    for name in only:
        if not any(part.name == name for part in found):
            raise PageError(f"--part: '{name}' is no part of scale {scale}, see --list")
    return [part for part in found if not only or part.name in only]


def describe(found, out):
    """Prints one line for each part, and the total time."""
    for part in found:
        done = "done" if os.path.exists(os.path.join(out, part.stamp)) else ""
        yield f"{'~' if part.reckoned else ''}{part.minutes}".rjust(5) + f" min  {part.scale:8s}  {done:4s}  {part.name}"
    reckoned = ", ~ where reckoned and not measured" if any(part.reckoned for part in found) else ""
    yield f"{sum(part.minutes for part in found):5d} min  in all, of one core{reckoned}"


def run_all(found, out, folder=_FOLDER):
    """Runs the parts that are not done yet. out: folder of stamps and logs. Raises PageError at the
    first failure."""
    os.makedirs(out, exist_ok=True)
    os.makedirs(os.path.join(folder, "runs"), exist_ok=True)
    for i, part in enumerate(found):
        stamp = os.path.join(out, part.stamp)
        if os.path.exists(stamp):
            print(f"{i + 1}/{len(found)} {part.name}: done before", flush=True)
            continue
        log = stamp + ".log"
        print(f"{i + 1}/{len(found)} {part.name}: about {part.minutes} min, log in {log}", flush=True)
        begin = time.monotonic()
        with open(log, "w", encoding="utf-8") as file:
            code = subprocess.run(["bash", "-euo", "pipefail", "-c", part.script], cwd=folder, stdout=file,
                                  stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False).returncode
        if code:
            raise PageError(f"{part.name}: ended with {code}, see {log}")
        minutes = (time.monotonic() - begin) / 60
        with open(stamp + ".new", "w", encoding="utf-8") as file:
            file.write(f"{part.name}\n{minutes:.1f} min\n")
        os.replace(stamp + ".new", stamp)
        print(f"{i + 1}/{len(found)} {part.name}: {minutes:.1f} min", flush=True)
