r"""Compares the tables of the pages with the CSVs of score.py that they were made from.

A table stands behind a comment that says from which row of which CSV each cell comes:

    <!-- csv: sequences=16
    .* \| (\d+): length=\1
    ovq N=(\d+) .*: basic-icr-small-ovq.csv centroids=\1
    -->

Columns that are aligned to the left are labels; an empty label repeats the one above. The place of a cell are its labels and its column's
title, joined by ` | `, without thousands separators. Each line whose regular expression matches the whole place adds words to those of the
first: a CSV of docs/results; `FIELD=TEXT`, which its row has, or `FIELD=TEXT*`, which its field begins with (`seen` and `position` are empty
unless said); or a column, whose text the cell then is. Other cells are the accuracy in %, with its error where there are several sequences, and, if they say it, the state's
bytes in MB; or the bits per byte. With the word `seeds` a cell is the median of all rows and their range, `81.2 (79.0 to 83.3)`. A cell without a
row in a CSV is a fault. Two files of `score.py --each` (`-each.csv`) and a length make a
cell the difference of their accuracies, the first less the second in points, with the standard error over sequences.

The text of a section that is traced names the rows of its figures likewise:

    <!-- figures: closest-pairs.csv length=2048
    98.8: ablation=closest-pair* live_centroids=255
    2.5 MB: closest-pairs-2048.csv length=8192
    -->

A figure is a number with decimals, or before a % sign, as the text has it, with its error if that stands there; numbers of parameters (3.0M)
and of papers (arXiv) are none. In a traced section every figure has its line, every line its figure, and every table its comment.
"""

import csv
import functools
import os
import re
import shlex
import statistics

import paired
from scoring import COLUMNS

RESULTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs", "results")
_TABLE = re.compile(r"(?:<!-- csv:((?:(?!-->)[\s\S])*)-->\n\n)?((?:\|[^\n]*\|\n)+)")
_SECTION = re.compile(r"^## (.*)\n((?:(?!## ).*\n?)*)", re.MULTILINE)
_FIGURES = re.compile(r"<!-- figures:((?:(?!-->)[\s\S])*)-->")
_NO_TEXT = re.compile(r"<!--(?:(?!-->)[\s\S])*-->|^    .*$|\]\([^)]*\)|arXiv [\d.]+|[\d.]+M\b", re.MULTILINE)
_FIGURE = re.compile(r"(?<![\d.,])(?P<number>\d[\d,]*\.\d+|\d+(?=%))(?: ± (?P<error>\d+\.\d+))?(?P<unit> MB)?")
_CELL = re.compile(r"(?P<figure>.*?)(?:, (?P<megabytes>[\d.]+) MB)?$")


class CellError(ValueError):
    """A cell is not what its CSV has."""


@functools.cache
def _rows(name):
    try:
        with open(os.path.join(RESULTS, name), encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return []


def tables(text):
    """Yields (rules or None, [(place, cell)]) of the tables that have columns aligned to the right."""
    for rules, table in _TABLE.findall(text):
        titles, aligned, *lines = ([cell.strip() for cell in line.strip()[1:-1].split("|")] for line in table.splitlines())
        values = [i for i, one in enumerate(aligned) if one.endswith(":")]
        labels, cells = [""] * len(titles), []
        for line in lines:
            labels = [cell or above for cell, above in zip(line, labels)]
            for i in values:
                place = [labels[j] for j in range(len(titles)) if j not in values] + [titles[i]]
                cells.append((" | ".join(map(_plain, place)), _plain(line[i])))
        if values:
            yield rules or None, cells


def _plain(text):
    return re.sub(r"(?<=\d),(?=\d{3})", "", text.replace("**", "").replace("`", ""))


def _has(row, field, value):
    return row[field].startswith(value[:-1]) if value.endswith("*") else row[field] == value


def _cell_words(rules, place):
    """Returns the words that a comment tells of a cell."""
    common, _, lines = rules.partition("\n")
    words = shlex.split(common)
    for line in lines.strip().splitlines():
        pattern, told = line.rsplit(": ", 1)
        match = re.fullmatch(pattern, place)
        words += shlex.split(match.expand(told)) if match else []
    return words


def _rows_told(words, place):
    """Returns (the rows that words tell of a place, what they have, their CSV, the column that they name or "")."""
    fields = {"seen": "", "position": "", **dict(word.split("=", 1) for word in words if "=" in word)}
    files = [word for word in words if word.endswith(".csv")]
    if not files:
        raise CellError(f"no line of the comment names a CSV for '{place}'")
    shown = [word for word in words if "=" not in word and word not in files and word != "seeds"]
    unknown = {*fields, *shown} - {*COLUMNS}
    if unknown:
        raise CellError(f"'{min(unknown)}', which is told of '{place}', is no column of a CSV")
    name = files[-1]
    found = [row for row in _rows(name) if all(_has(row, *one) for one in fields.items())]
    return found, fields, name, shown[-1] if shown else ""


def _row(words, place):
    """Returns (the one row that words tell of a place, its CSV, the column that they name or "")."""
    found, fields, name, shown = _rows_told(words, place)
    if len(found) != 1:
        raise CellError(f"{place}: {len(found)} rows of {name} have {fields}")
    return found[0], name, shown


def _figure(row):
    if not row["accuracy"]:
        return f"{float(row['bits_per_byte']):.3f}"
    return " ± ".join(f"{100 * float(row[name]):.1f}" for name in ("accuracy", "error") if row[name])


def _seeds(words, place):
    """Returns (the cell of rows that differ in their model: their median and range, their CSV)."""
    found, fields, name, _ = _rows_told(words, place)
    if len({row["model"] for row in found}) != len(found) or len(found) < 2:
        raise CellError(f"{place}: {len(found)} rows of {name} have {fields}, but seeds are several models with a row each")
    scale, column, digits = (100, "accuracy", 1) if found[0]["accuracy"] else (1, "bits_per_byte", 3)
    values = [scale * float(row[column]) for row in found]
    median, least, most = (f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{median} ({least} to {most})", name


def _difference(files, length):
    """Returns the cell of two files of score.py --each: the difference over all tokens of a length."""
    try:
        first, second = (paired.read_each(os.path.join(RESULTS, name), None) for name in files)
        found = {str(row[0]): row[-2:] for row in paired.compare(first, second) if not row[1]}
        difference, error = found[length]
    except (KeyError, OSError, ValueError) as fault:
        raise CellError(f"{' less '.join(files)}, length {length}: {fault}") from fault
    return f"{100 * difference:+.1f} ± {100 * error:.1f}"


def check(rules, place, cell):
    """Raises CellError unless the cell is what its row of a CSV gives."""
    words = _cell_words(rules, place)
    each = [word for word in words if word.endswith("-each.csv")]
    if each:
        expected = _difference(each, dict(word.split("=", 1) for word in words if "=" in word).get("length"))
        if cell != expected:
            raise CellError(f"{place}: '{cell}', but {' less '.join(each)} is {expected}")
        return
    if "seeds" in words:
        expected, name = _seeds(words, place)
        if cell != expected:
            raise CellError(f"{place}: '{cell}', but {name} has {expected}")
        return
    row, name, shown = _row(words, place)
    parts = _CELL.match(cell)
    expected = row[shown] if shown else _figure(row)
    if parts["figure"] != expected:
        raise CellError(f"{place}: '{cell}', but {name} has {expected}")
    megabytes = f"{int(row['state_bytes'] or 0) / 1e6:.1f}"
    if parts["megabytes"] and row["state_bytes"] and parts["megabytes"] != megabytes:
        raise CellError(f"{place}: '{cell}', but {name} has {megabytes} MB")


def _check_figure(figure, words):
    """Raises CellError unless a figure of a text is that of its row, rounded to as many digits."""
    row, name, _ = _row(words, figure)
    parts = _FIGURE.match(figure + "%")
    if parts["unit"]:
        values = [float(row["state_bytes"] or 0) / 1e6]
    else:
        scale, first = (100, "accuracy") if row["accuracy"] else (1, "bits_per_byte")
        values = [scale * float(row[field] or 0) for field in (first, "error")]
    for told, value in zip((parts["number"], parts["error"]), values):
        expected = told and f"{value:.{len(told.partition('.')[2])}f}"
        if told != expected:
            raise CellError(f"'{figure}': {name} has {expected}")


def _figures_told(section):
    """Yields (figure, words) of the lines of a section's comments."""
    for comment in _FIGURES.findall(section):
        common, _, lines = comment.partition("\n")
        for line in lines.strip().splitlines():
            figure, told = line.split(": ", 1)
            yield figure, shlex.split(common) + shlex.split(told)


def figure_faults(text, title):
    """Yields what is wrong with the figures in the text, and with the tables, of the section with a title."""
    section = dict(_SECTION.findall(text)).get(title)
    if section is None:
        yield f"no section has the title '{title}'"
        return
    prose = _NO_TEXT.sub("", _TABLE.sub(lambda table: "" if ":|" in table[2] else table[0], section))
    shown = {match[0] for match in _FIGURE.finditer(re.sub(r"\s+", " ", prose))}
    told = list(_figures_told(section))
    yield from (f"{title}: no comment names the row of '{figure}'" for figure in sorted(shown - {one for one, _ in told}))
    for figure, words in told:
        try:
            if figure not in shown:
                raise CellError(f"the text does not have the '{figure}' of a comment")
            _check_figure(figure, words)
        except CellError as error:
            yield f"{title}: {error}"
    yield from (f"{title}: the table of '{cells[0][0]}' has no comment that names its CSV" for rules, cells in tables(section) if rules is None)


def faults(text, whole):
    """Yields what is wrong with a page's cells. whole: every table needs a comment."""
    for rules, cells in tables(text):
        if rules is None:
            if whole:
                yield f"{cells[0][0]}: the table has no comment that names its CSV"
            continue
        for place, cell in cells:
            try:
                if cell:
                    check(rules, place, cell)
            except CellError as error:
                yield str(error)
