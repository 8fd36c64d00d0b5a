"""Draws scores of score.py and writes them as markdown: one figure, one table per task.

Recall tasks get a panel of accuracy by length, in-context learning one of accuracy by examples
seen; the last panel is a session's memory by length.
"""

import argparse
import collections
import csv
import os
import sys

from plots import Line, Panel, plot_panels

# Examples seen before that fewer scored tokens than this share of the most have are left out of
# the figure: few functions are asked that often.
_LEAST_SEEN_SHARE = 0.1
_MIXER_ORDER = ("full", "vq", "ovq", "sliding")


def read_rows(paths):
    """The CSVs' rows, numbers parsed; empty cells are None."""
    rows = []
    for path in paths:
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                rows.append({name: _value(name, text) for name, text in row.items()})
                missing = {"mixer", "centroids", "accuracy"} - {
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
    return float(text) if name in ("accuracy", "error", "seconds", "tokens_per_second",
                                   "agreement", "logprob_difference") else int(text)


def add_labels(rows):
    """Gives each row the `label` of its line in the figure: mixer, ablation and centroids.

    Where one task has several models or backends of a label, these are named too.
    """
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


def _row_order(row):
    centroids = row["centroids"] or "0"
    ratio = centroids.endswith("x")  # after all numbers
    return (_MIXER_ORDER.index(row["mixer"]), row["ablation"] != "none", row["ablation"], ratio,
            float(centroids[:-1] if ratio else centroids), row["label"], row["length"])


def group_rows(rows):
    """{label: its rows by length}, labels in the order of the legend."""
    groups = collections.defaultdict(list)
    for row in sorted(rows, key=_row_order):
        groups[row["label"]].append(row)
    return groups


def _line(group, points):
    return Line(group[0]["label"], group[0]["mixer"], group[0]["centroids"], group[0]["ablation"],
                points)


def length_lines(rows, column):
    """Lines of a column of whole rows by length, an accuracy with its standard error."""
    lines = []
    for group in group_rows([row for row in rows if row["seen"] is None]).values():
        points = [(row["tokens"], row[column], row["error"] if column == "accuracy" else None)
                  for row in group if row[column] is not None]
        if points:
            lines.append(_line(group, points))
    return lines


def seen_lines(rows, length):
    """Lines of the accuracy by examples of the same function seen before, at one length."""
    lines = []
    chosen = [row for row in rows if row["seen"] is not None and row["length"] == length]
    for group in group_rows(chosen).values():
        least = _LEAST_SEEN_SHARE * max(row["scored"] for row in group)
        points = sorted((row["seen"], row["accuracy"], row["error"])
                        for row in group if row["scored"] >= least)
        lines.append(_line(group, points))
    return lines


def memory_lines(rows):
    """State bytes by length, and those of full attention in every layer."""
    lines = length_lines(rows, "state_bytes")
    full = {row["tokens"]: row["full_kv_cache_bytes"] for row in rows
            if row["full_kv_cache_bytes"] is not None}
    if full:
        lines.append(Line("full KV cache", "cache", None, "none",
                          [(n, size, None) for n, size in sorted(full.items())]))
    return lines


def by_task(rows):
    """[(task, its rows)] in order of appearance."""
    return [(task, [row for row in rows if row["task"] == task])
            for task in dict.fromkeys(row["task"] for row in rows)]


def make_panels(rows, seen_length, trained_length):
    """A panel for each task, one for the memory: that of the first task, if their models differ."""
    panels, tasks = [], by_task(rows)
    for task, own in tasks:
        lengths = {row["length"] for row in own if row["seen"] is not None}
        if lengths:
            length = seen_length or max(lengths)
            if length not in lengths:
                raise ValueError(f"--seen-length: {task} has no rows of {length}, "
                                 f"but of {', '.join(map(str, sorted(lengths)))}")
            panels.append(Panel(f"{task}, {length} tokens", "examples of the function seen",
                                "accuracy", seen_lines(own, length)))
        else:
            panels.append(Panel(task, "length in tokens", "accuracy",
                                length_lines(own, "accuracy"), trained_length))
    memory = memory_lines(tasks[0][1])
    if memory:
        title = "memory of a session" + (f", {tasks[0][0]}" if len(tasks) > 1 else "")
        panels.append(Panel(title, "length in tokens", "bytes", memory))
    return panels


def _table(rows, cell):
    """Markdown: a row a label, a column a length; cell gives the text of a row of the CSV."""
    lengths = sorted({row["length"] for row in rows})
    lines = ["| | " + " | ".join(map(str, lengths)) + " |", "|---" + "|---:" * len(lengths) + "|"]
    for label, group in group_rows(rows).items():
        cells = {row["length"]: cell(row) for row in group}
        lines.append(f"| {label} | " +
                     " | ".join(cells.get(length, "") for length in lengths) + " |")
    return "\n".join(lines)


def _accuracy_cell(row):
    error = "" if row["error"] is None else f" ± {100 * row['error']:.1f}"
    return f"{100 * row['accuracy']:.1f}{error}"


def _bytes_cell(row):
    return "" if row["state_bytes"] is None else f"{row['state_bytes']:,}"


def markdown(rows):
    """The tables of every task: accuracy in percent, then bytes of a session's state."""
    parts = []
    for task, own in by_task([row for row in rows if row["seen"] is None]):
        parts += [f"### {task}", "Accuracy in %, with its standard error over sequences, by length "
                  "in tokens:", _table(own, _accuracy_cell)]
        sized = [row for row in own if row["state_bytes"] is not None]
        if sized:
            parts += ["Bytes of a session's state at that length:",
                      _table(sized, _bytes_cell)]
    return "\n\n".join(parts) + "\n"


def report(paths, out, seen_length=None, trained_length=None):
    """Writes OUT.png and OUT.md of the CSVs; returns both paths."""
    rows = read_rows(paths)
    add_labels(rows)
    os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
    plot_panels(out + ".png", make_panels(rows, seen_length, trained_length))
    with open(out + ".md", "w", encoding="utf-8") as file:
        file.write(markdown(rows))
    return out + ".png", out + ".md"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scores", nargs="+", help="CSV files of score.py")
    parser.add_argument("--out", required=True, help="path without suffix; .png and .md are added")
    parser.add_argument("--seen-length", type=int, help="in-context learning: length whose "
                        "sequences are drawn; default: the longest")
    parser.add_argument("--trained-length", type=int, help="longest training sequence: drawn as a "
                        "vertical line")
    args = parser.parse_args()
    print(*report(args.scores, args.out, args.seen_length, args.trained_length), sep="\n")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"report.py: {error}")
