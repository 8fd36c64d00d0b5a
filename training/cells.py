r"""Compares the tables of the pages with the CSVs of score.py that they were made from.

A table stands behind a comment that says from which row of which CSV each cell comes:

    <!-- csv: sequences=16
    .* \| (\d+): length=\1
    ovq N=(\d+) .*: basic-icr-small-ovq.csv centroids=\1
    -->

Columns that are aligned to the left are labels; an empty label repeats the one above. The place of a cell are its labels and its column's
title, joined by ` | `, without thousands separators. Each line whose regular expression matches the whole place adds words to those of the
first: a CSV of docs/results; `FIELD=TEXT`, which its row has, or `FIELD=TEXT*`, which its field begins with (`seen` and `position` are empty
unless said); or a column, whose text the cell then is. Other cells are the accuracy in %, with its error, and, if they say it, the state's
bytes in MB; or the bits per byte. A cell whose row no CSV has ends in a dagger, and no other does.
"""

import csv
import functools
import os
import re
import shlex

from scoring import COLUMNS

RESULTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs", "results")
_TABLE = re.compile(r"(?:<!-- csv:((?:(?!-->)[\s\S])*)-->\n\n)?((?:\|[^\n]*\|\n)+)")
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


def _source(rules, place):
    """Returns (CSV, column or "", {field: value}) of a cell."""
    common, _, lines = rules.partition("\n")
    words = shlex.split(common)
    for line in lines.strip().splitlines():
        pattern, told = line.rsplit(": ", 1)
        match = re.fullmatch(pattern, place)
        words += shlex.split(match.expand(told)) if match else []
    fields = {"seen": "", "position": "", **dict(word.split("=", 1) for word in words if "=" in word)}
    files = [word for word in words if word.endswith(".csv")]
    if not files:
        raise CellError(f"no line of the comment names a CSV for '{place}'")
    shown = [word for word in words if "=" not in word and word not in files]
    unknown = {*fields, *shown} - {*COLUMNS}
    if unknown:
        raise CellError(f"'{min(unknown)}', which is told of '{place}', is no column of a CSV")
    return files[-1], shown[-1] if shown else "", fields


def _figure(row):
    if not row["accuracy"]:
        return f"{float(row['bits_per_byte']):.3f}"
    return " ± ".join(f"{100 * float(row[name]):.1f}" for name in ("accuracy", "error"))


def check(rules, place, cell):
    """Raises CellError unless the cell is what its row of a CSV gives."""
    name, shown, wanted = _source(rules, place)
    found = [row for row in _rows(name) if all(_has(row, *one) for one in wanted.items())]
    if not found and cell.endswith("†"):
        return
    if len(found) != 1:
        raise CellError(f"{place}: {len(found)} rows of {name} have {wanted}")
    row, parts = found[0], _CELL.match(cell)
    expected = row[shown] if shown else _figure(row)
    if parts["figure"] != expected:
        raise CellError(f"{place}: '{cell}', but {name} has {expected}")
    megabytes = f"{int(row['state_bytes'] or 0) / 1e6:.1f}"
    if parts["megabytes"] and row["state_bytes"] and parts["megabytes"] != megabytes:
        raise CellError(f"{place}: '{cell}', but {name} has {megabytes} MB")


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
