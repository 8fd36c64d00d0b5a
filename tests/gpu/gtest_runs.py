"""Runs the tests of a gtest program in several processes side by side. A test that ends its process, or
hangs, counts as failed, and those that it was to be followed by run in another process."""

import concurrent.futures
import re
import time

from limited_run import TIME_LIMIT, run

TEST_SECONDS = 40  # the longest that one test may take
ENDED_BY_ITSELF = ("exit 0", "exit 1")  # a gtest program that came to its end
KEPT_OUTPUT = 4000  # characters of a failing process that go into the result
NO_DEVICE = "device 'cuda': "  # begins the reason of a test that is skipped for want of a GPU
OUTCOMES = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}


def list_tests(program, pattern, env, cwd):
    listed = run([program, "--gtest_list_tests", f"--gtest_filter={pattern}"], 30, env, cwd)
    names, suite = [], ""
    for line in listed.output.splitlines() if listed.code == 0 else []:
        word = line.split("#")[0].strip()
        if line.startswith("  "):
            names.append(suite + word)
        elif word.endswith(".") and " " not in word:
            suite = word
    return names


def run_process(program, names, limit, env, cwd, prefix=()):
    """(outcomes by name, the test it ended in or None, how it ended, output)"""
    finished = run([*prefix, program, "--gtest_filter=" + ":".join(names)], limit, env, cwd,
                   silence=None if prefix else TEST_SECONDS)
    lines = re.findall(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] ([^\s,]+)", finished.output)
    known = set(names)
    outcomes = {name: OUTCOMES[word] for word, name in lines if word != "RUN" and name in known}
    for name in [name for name, outcome in outcomes.items() if outcome == "skipped"]:
        if not any(NO_DEVICE in part for part in test_parts(finished.output, name, "SKIPPED")):
            outcomes[name] = "inapplicable"
    begun = [name for word, name in lines if word == "RUN"]
    culprit = begun[-1] if begun and begun[-1] not in outcomes else None
    return outcomes, culprit, finished.ended, finished.output


def test_parts(output, name, word):
    return [found.group(0) for found in re.finditer(
        rf"^\[ RUN +\] {re.escape(name)}$.*?^\[ +{word} +\]", output, re.MULTILINE | re.DOTALL)]


def failing_parts(output, failed, ended):
    """Parts of the output: of each failed test, and its end where the program was ended by something else."""
    parts = [part for name in failed for part in test_parts(output, name, "FAILED")]
    if ended not in ENDED_BY_ITSELF or not parts:
        parts.append(output[-KEPT_OUTPUT:])
    return "".join(part[:KEPT_OUTPUT] + "\n" for part in parts)


def run_tests(program, names, limit, env, cwd):
    """Counts of these tests, one process after another as long as tests end theirs."""
    begin = time.monotonic()
    counts = {"passed": [], "failed": [], "skipped": [], "inapplicable": [], "not_run": [], "ended": [],
              "output": ""}
    left = list(names)
    while left:
        outcomes, culprit, ended, output = run_process(
            program, left, limit - (time.monotonic() - begin), env, cwd)
        for name, outcome in outcomes.items():
            counts[outcome].append(name)
        left = [name for name in left if name not in outcomes and name != culprit]
        if "failed" in outcomes.values() or ended != "exit 0":
            failed = [name for name, outcome in outcomes.items() if outcome == "failed"]
            counts["output"] += failing_parts(output, failed, ended)
        if ended in ENDED_BY_ITSELF and not left:
            break
        counts["ended"].append(f"{ended} in {culprit}")
        if culprit is not None and ended != TIME_LIMIT:
            counts["failed"].append(culprit)
        elif culprit is not None:
            left.append(culprit)
        if culprit is None or ended == TIME_LIMIT:
            counts["not_run"] = left
            break
    return counts


def run_shards(jobs, limit, env, cwd):
    """jobs: (name, program, pattern, number of processes). Counts by name, all jobs side by side."""
    begin = time.monotonic()
    lists = {name: list_tests(program, pattern, env, cwd) for name, program, pattern, _ in jobs}
    total = {name: {"passed": 0, "failed": [], "skipped": [], "inapplicable": [], "not_run": [], "ended": [],
                    "output": "", "seconds": 0} for name, *_ in jobs}
    with concurrent.futures.ThreadPoolExecutor(sum(n for *_, n in jobs)) as pool:
        running = [(name, pool.submit(run_tests, program, lists[name][i::n], limit, env, cwd))
                   for name, program, _, n in jobs for i in range(n)]
        for name, shard in running:
            counts = shard.result()
            total[name]["passed"] += len(counts["passed"])
            for key in ("failed", "skipped", "inapplicable", "not_run", "ended"):
                total[name][key] += counts[key]
            total[name]["output"] = (total[name]["output"] + counts["output"])[:4 * KEPT_OUTPUT]
            total[name]["seconds"] = round(time.monotonic() - begin, 1)
    return total
