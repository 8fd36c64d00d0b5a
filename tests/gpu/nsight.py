"""Per-kernel tables of Nsight Compute: what ran in a program's profiler range, and how near the GPU's limits."""

import csv
import io
import re

# Column of our table: metric of Nsight Compute.
METRICS = {
    "nanoseconds": "gpu__time_duration.sum",
    "bytes_read": "dram__bytes_read.sum",
    "bytes_written": "dram__bytes_write.sum",
    "blocks": "launch__grid_size",
    "threads": "launch__block_size",
    "registers": "launch__registers_per_thread",
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "warps_active_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
}


def command(ncu, most_kernels):
    """Clocks and caches stay as they are in a run without a profiler."""
    return [ncu, "--csv", "--page", "raw", "--print-units", "base", "--profile-from-start", "off",
            "--clock-control", "none", "--cache-control", "none", "--launch-count", str(most_kernels),
            "--metrics", ",".join(METRICS.values())]


def short_name(kernel):
    """A demangled name without its namespaces, arguments and return type."""
    kernel = re.sub(r"\((anonymous namespace|unnamed)\)::|<unnamed>::", "", kernel)
    kernel = re.sub(r"\((int|bool|unsigned|long|unsigned int)\)", "", kernel)
    depth = 0
    for at, character in enumerate(kernel):
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "(" and depth == 0:
            kernel = kernel[:at]
            break
    kernel = re.sub(r"\b\w+::", "", kernel).strip()
    return re.sub(r"^(void|static) ", "", kernel)


def rows(output):
    """The kernels in their order, from what ncu printed; the program's own lines are left out."""
    lines = output.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        return []
    table = csv.DictReader(io.StringIO("\n".join(line for line in lines[begin:] if line.startswith('"'))))
    found = []
    for line in table:
        if not line["ID"]:  # the units
            continue
        row = {"kernel": short_name(line["Kernel Name"])}
        for column, metric in METRICS.items():
            try:
                row[column] = float((line.get(metric) or "").replace(",", ""))
            except ValueError:
                row[column] = None
            if row[column] is not None and row[column].is_integer():
                row[column] = int(row[column])
        found.append(row)
    return found


def write_csv(path, kernels):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, ["kernel", *METRICS])
        writer.writeheader()
        writer.writerows(kernels)


def sums(kernels):
    """Kernels by name, those that take longest first: launches, microseconds, and bytes/ns (GB/s)."""
    by_name = {}
    for row in kernels:
        of = by_name.setdefault(row["kernel"], {"launches": 0, "microseconds": 0.0, "bytes": 0})
        of["launches"] += 1
        of["microseconds"] += (row["nanoseconds"] or 0) / 1e3
        of["bytes"] += (row["bytes_read"] or 0) + (row["bytes_written"] or 0)
    for of in by_name.values():
        of["gigabytes_per_s"] = round(of["bytes"] / max(of["microseconds"], 1e-3) / 1e3)
        of["microseconds"] = round(of["microseconds"], 1)
    return dict(sorted(by_name.items(), key=lambda item: -item[1]["microseconds"]))
