"""Draws scores of score.py and writes them as markdown: one figure, one table for each task.

Recall tasks get a panel of accuracy by length, in-context learning one of accuracy by examples
seen, byte models one of bits per byte by position; the last panel shows a session's memory by
length."""

import argparse
import collections
import csv
import os
import statistics
import sys

from plots import Line, Panel, plot_panels, require

# The figure leaves out numbers of examples with fewer scored tokens than this share of the largest:
# few functions are queried that often.
_LEAST_GROUP_SHARE = 0.1
_GROUP_LABELS = {"seen": "examples of the function seen", "position": "position in bytes"}
_MIXER_ORDER = ("full", "vq", "ovq", "closest-pair", "keydiff", "kvm", "gdn", "mamba2", "mesa", "lattice", "tvq", "sliding")


def read_rows(paths):
    """Reads the CSVs' rows and parses numbers; empty cells are None."""
    rows = []
    for path in paths:
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                rows.append({name: _value(name, text) for name, text in row.items()})
                missing = {"mixer", "centroids", "bits_per_byte"} - {
                    name for name, text in row.items() if text is not None}
                if missing:
                    raise ValueError(f"{path}: no column {min(missing)!r}: not of score.py")
    if not rows:
        raise ValueError(f"{', '.join(paths)}: no rows")
    return rows


def _value(name, text):
    if not text:
        return None
    if name in ("model", "mixer", "ablation", "backend", "task", "centroids"):
        return text
    return float(text) if name in ("accuracy", "bits_per_byte", "error", "seconds",
                                   "tokens_per_second", "agreement", "logprob_difference") \
        else int(text)


def _group_of(row):
    """Returns the column by which the row belongs to a group of tokens; None: it covers all scored
    ones."""
    return next((name for name in _GROUP_LABELS if row[name] is not None), None)


def _whole(rows):
    return [row for row in rows if _group_of(row) is None]


def _metric(rows):
    return "accuracy" if rows[0]["accuracy"] is not None else "bits_per_byte"


def add_labels(rows):
    """Gives each row the `label` of its line in the figure: mixer, ablation and centroids.

    If one task has several models or backends with a label, the label names them, too."""
    sources = collections.defaultdict(set)
    for row in rows:
        row["label"] = _label(row)
        sources[row["task"], row["label"]].add((row["model"], row["backend"]))
    for row in rows:
        if len(sources[row["task"], row["label"]]) > 1:
            row["label"] += f" ({row['model']}, {row['backend']})"


def _label(row):
    name, centroids = row["mixer"], row["centroids"]
    if row["ablation"] != "none":
        name += " " + row["ablation"].replace("_", " ")
    if centroids is None:
        return name
    return f"{name} n={centroids[:-1]}T" if centroids.endswith("x") else f"{name} N={centroids}"


def merge_seeds(rows):
    """Merges rows, with labels, that differ only in their model: the median of the measurements
    and, for several, `range` (minimum and maximum) in place of the error within one."""
    same = collections.defaultdict(list)
    for row in rows:
        same[tuple(row[name] for name in ("task", "backend", "length", *_GROUP_LABELS)), _label(row)].append(row)
    merged = []
    for (_, label), group in same.items():
        column = _metric(group)
        values = [row[column] for row in group]
        merged.append({**group[0], column: statistics.median(values), "label": label})
        if len(group) > 1:
            merged[-1].update(error=None, range=(min(values), max(values)), label=f"{label}, {len(group)} seeds")
    return merged


def _row_order(row):
    centroids = row["centroids"] or "0"
    ratio = centroids.endswith("x")  # ratios come after all numbers
    return (_MIXER_ORDER.index(row["mixer"]), row["ablation"] != "none", row["ablation"], ratio,
            float(centroids[:-1] if ratio else centroids), row["label"], row["length"])


def group_rows(rows):
    """Returns {label: its rows by length}, with labels in the order of the legend."""
    groups = collections.defaultdict(list)
    for row in sorted(rows, key=_row_order):
        groups[row["label"]].append(row)
    return groups


def _line(group, points):
    return Line(group[0]["label"], group[0]["mixer"], group[0]["centroids"], group[0]["ablation"],
                points)


def _spread(row, column):
    """Returns the spread of a point in a figure: the standard error, or the distances down and up
    to the ends of the seeds' range."""
    if "range" not in row:
        return row["error"]
    return row[column] - row["range"][0], row["range"][1] - row[column]


def length_lines(rows, column):
    """Returns lines of a column by length, for rows that cover all tokens, with the spread."""
    lines = []
    for group in group_rows(_whole(rows)).values():
        points = [(row["tokens"], row[column], None if column == "state_bytes" else _spread(row, column))
                  for row in group if row[column] is not None]
        if points:
            lines.append(_line(group, points))
    return lines


def group_lines(rows, column, length):
    """Returns lines by a column of groups, such as the examples seen before, at one length."""
    lines = []
    chosen = [row for row in rows if row[column] is not None and row["length"] == length]
    for group in group_rows(chosen).values():
        least = _LEAST_GROUP_SHARE * max(row["scored"] for row in group) \
            if column == "seen" else 0
        points = sorted((row[column], row[_metric(rows)], _spread(row, _metric(rows)))
                        for row in group if row["scored"] >= least)
        lines.append(_line(group, points))
    return lines


def memory_lines(rows):
    """Returns a session's state bytes by length, and those of full attention in every layer."""
    lines = length_lines(rows, "state_bytes")
    full = {row["tokens"]: row["full_kv_cache_bytes"] for row in rows
            if row["full_kv_cache_bytes"] is not None}
    if full:
        lines.append(Line("full KV cache", "cache", None, "none",
                          [(n, size, None) for n, size in sorted(full.items())]))
    return lines


def by_task(rows):
    """Returns [(task, its rows)] in order of appearance."""
    return [(task, [row for row in rows if row["task"] == task])
            for task in dict.fromkeys(row["task"] for row in rows)]


def make_panels(rows, group_length, trained_length):
    """Returns a panel for each task, and one for the memory: that of the first task, if their
    models differ."""
    panels, tasks = [], by_task(rows)
    for task, own in tasks:
        lengths = {row["length"]: _group_of(row) for row in own if _group_of(row)}
        metric = _metric(own)
        if lengths:
            length = max((one for one in lengths if one <= (group_length or one)), default=None)
            if length is None:
                raise ValueError(f"--group-length: {task} has no rows of {group_length} or less, "
                                 f"but of {', '.join(map(str, sorted(lengths)))}")
            column = lengths[length]
            panels.append(Panel(f"{task}, {length} tokens", _GROUP_LABELS[column],
                                metric.replace("_", " "), group_lines(own, column, length),
                                trained_length if column == "position" else None))
        else:
            panels.append(Panel(task, "length in tokens", metric.replace("_", " "),
                                length_lines(own, metric), trained_length))
    memory = memory_lines(tasks[0][1])
    if memory:
        title = "memory of a session" + (f", {tasks[0][0]}" if len(tasks) > 1 else "")
        panels.append(Panel(title, "length in tokens", "bytes", memory))
    return panels


def _table(rows, cell):
    """Returns a markdown table: one row for each label, one column for each length; cell formats a
    row of the CSV."""
    lengths = sorted({row["length"] for row in rows})
    lines = ["| | " + " | ".join(map(str, lengths)) + " |", "|---" + "|---:" * len(lengths) + "|"]
    for label, group in group_rows(rows).items():
        cells = {row["length"]: cell(row) for row in group}
        lines.append(f"| {label} | " +
                     " | ".join(cells.get(length, "") for length in lengths) + " |")
    return "\n".join(lines)


def _metric_cell(row):
    column, scale, digits = ("bits_per_byte", 1, 3) if row["accuracy"] is None else ("accuracy", 100, 1)
    text = f"{scale * row[column]:.{digits}f}"
    if "range" in row:
        return text + " ({:.{}f} to {:.{}f})".format(*(x for end in row["range"] for x in (scale * end, digits)))
    return text if row["error"] is None else f"{text} ± {scale * row['error']:.{digits}f}"


def _bytes_cell(row):
    return "" if row["state_bytes"] is None else f"{row['state_bytes']:,}"


def markdown(rows):
    """Returns the tables of every task: the measurements, then bytes of a session's state."""
    parts = []
    for task, own in by_task(_whole(rows)):
        name = "Accuracy in %" if _metric(own) == "accuracy" else "Bits per byte"
        error = "the standard error over sequences or, of several seeds, their median (and range)" \
            if any("range" in row for row in own) else "the standard error over sequences"
        parts += [f"### {task}", f"{name}, with {error}, by length in tokens:", _table(own, _metric_cell)]
        sized = [row for row in own if row["state_bytes"] is not None]
        if sized:
            parts += ["Bytes of a session's state at that length:",
                      _table(sized, _bytes_cell)]
    return "\n\n".join(parts) + "\n"


def report(paths, out, group_length=None, trained_length=None, seeds=False):
    """Writes OUT.png and OUT.md from the CSVs; returns both paths. seeds: models are runs of one
    recipe."""
    rows = read_rows(paths)
    if seeds:
        rows = merge_seeds(rows)
    else:
        add_labels(rows)
    os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
    plot_panels(out + ".png", make_panels(rows, group_length, trained_length))
    with open(out + ".md", "w", encoding="utf-8") as file:
        file.write(markdown(rows))
    return out + ".png", out + ".md"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scores", nargs="+", help="CSV files of score.py")
    parser.add_argument("--out", required=True, help="path without suffix; .png and .md are added")
    parser.add_argument("--group-length", type=int, help="in-context learning, byte models: "
                        "of every task the longest sequences up to this length are drawn")
    parser.add_argument("--trained-length", type=int, help="longest training sequence: drawn as a "
                        "vertical line")
    parser.add_argument("--seeds", action="store_true", help="scores that differ in the model's name only are of "
                        "runs that differ in their seed: one line has their median, and from the least to the most")
    args = parser.parse_args()
    require()
    print(*report(args.scores, args.out, args.group_length, args.trained_length, args.seeds), sep="\n")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"report.py: {error}")
