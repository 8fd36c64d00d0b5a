"""Compares two scores of the same sequences, sequence by sequence: the difference and its standard
error.

Texts differ much more from each other than models do, so the error of one score says little about a
difference. Takes two files that `score.py --each` wrote for the same lengths, sequences and seed.
Prints, for each length and group of tokens, both scores, the first minus the second, and the
standard error of that over sequences."""

import argparse
import csv
import os
import sys

import numpy as np

from scoring import EACH_COLUMNS, mean_and_error


def read_each(path, centroids):
    """Returns {(length, group or ""): {sequence: (scored, sum)}} of the rows of one dictionary
    size."""
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != EACH_COLUMNS:
            raise ValueError(f"{path}: not of score.py --each")
        rows = list(reader)
    for i, row in enumerate(rows):
        if None in row or None in row.values():
            raise ValueError(f"{path}: row {i + 1} is not of score.py --each: expected {len(EACH_COLUMNS)} columns")
    sizes = sorted({row["centroids"] for row in rows})
    if centroids is None and len(sizes) > 1 or centroids is not None and centroids not in sizes:
        raise ValueError(f"{path}: has centroids {', '.join(sizes)}: expected one of them behind "
                         f"a colon, got {'none' if centroids is None else repr(centroids)}")
    found = {}
    for i, row in enumerate(rows):
        if centroids not in (None, row["centroids"]):
            continue
        try:
            key = int(row["length"]), row["seen"] or row["position"]
            found.setdefault(key, {})[int(row["sequence"])] = int(row["scored"]), float(row["sum"])
        except ValueError as error:
            raise ValueError(f"{path}: row {i + 1} is not of score.py --each: {error}") from error
    return found


def read_named(name):
    """Returns read_each of FILE[:CENTROIDS]; a file's name may have colons, too."""
    path, colon, centroids = name.rpartition(":")
    return read_each(path, centroids) if colon and not os.path.exists(name) else read_each(name, None)


def compare(first, second):
    """Yields (length, group, sequences, score, score, difference, error or None).

    Raises ValueError if both have a length and group, but different sequences or scored tokens."""
    # The row of all tokens comes before that of group 0.
    both = sorted(first.keys() & second.keys(), key=lambda key: (key[0], int(key[1] or -1)))
    if not both:
        raise ValueError("the two files have no length in common")
    for key in both:
        ones, others = first[key], second[key]
        if {i: one[0] for i, one in ones.items()} != {i: other[0] for i, other in others.items()}:
            raise ValueError(f"length {key[0]}: not the same sequences in both files")
        counts = np.array([ones[i][0] for i in sorted(ones)])
        sums = [np.array([part[i][1] for i in sorted(part)]) for part in (ones, others)]
        difference, error = mean_and_error(sums[0] - sums[1], counts)
        yield (*key, len(counts), *(part.sum() / counts.sum() for part in sums), difference, error)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("first", "second"):
        parser.add_argument(name, metavar="FILE[:CENTROIDS]", help="as --centroids of score.py has it; "
                            "needed where the file has several")
    args = parser.parse_args()
    parts = [read_named(name) for name in (args.first, args.second)]
    print("| length | group | sequences | first | second | first less second |\n|---:|---:|---:|---:|---:|---:|")
    for length, group, n, one, other, difference, error in compare(*parts):
        sure = "" if error is None else f" ± {error:.4f}"
        print(f"| {length} | {group or 'all'} | {n} | {one:.4f} | {other:.4f} | {difference:+.4f}{sure} |")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"paired.py: {error}")
