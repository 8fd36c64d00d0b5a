#!/usr/bin/env python3
"""Cost of a metrics scrape to a server under load.

usage: bench_scrape.py [--build build/cpu] [--model models/python-bytes] [--answers 8] [--passes 5]
                       [--seconds 4] [--threads 1]

Prints the CPU time of a scrape of an idle server, the time and size of one under load and, in alternating
passes, the engine's mean step time without scrapes and with ten a second (the server's own figure, from two
scrapes around every window in both cases). Choose --threads below the number of cores: clients and scrapes
need some, and a batch whose threads wait for a core says nothing about scrapes.
"""

import argparse
import os
import re
import statistics
import sys
import threading
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "process"), os.path.join(ROOT, "clients", "python")]

from ovq_client import Client
from server_process import ServerProcess

SCRAPES_A_SECOND = 10


def scrape(url):
    """(text, seconds)"""
    started = time.monotonic()
    with urllib.request.urlopen(url, timeout=10) as response:
        text = response.read().decode()
    return text, time.monotonic() - started


def total(text, name):
    return sum(float(value) for value in
               re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


def cpu_seconds(url, count):
    """CPU time of one scrape; nothing else runs."""
    name = "process_cpu_seconds_total"
    before = total(scrape(url)[0], name)
    for _ in range(count - 1):
        scrape(url)
    return (total(scrape(url)[0], name) - before) / count


def answer(address, stop):
    """Keeps one answer running."""
    with Client(address) as client:
        while not stop.is_set():
            for _ in client.generate("def main():", max_tokens=2000, temperature=1, seed=1):
                if stop.is_set():
                    return


def window(url, seconds, with_scrapes):
    """(mean step time in seconds, times of the scrapes, bytes of the last one)"""
    before, _ = scrape(url)
    times = []
    end = time.monotonic() + seconds
    due = time.monotonic()
    while time.monotonic() < end:
        due += 1 / SCRAPES_A_SECOND
        if with_scrapes:
            times.append(scrape(url)[1])
        time.sleep(max(0, due - time.monotonic()))
    after, _ = scrape(url)
    name = "ovq_step_duration_seconds"
    steps = total(after, f"{name}_count") - total(before, f"{name}_count")
    if steps == 0:
        sys.exit("no steps were made: the load does not run")
    spent = total(after, f"{name}_sum") - total(before, f"{name}_sum")
    return spent / steps, times, len(after.encode())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "cpu"))
    parser.add_argument("--model", default=os.path.join(ROOT, "models", "python-bytes"))
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    stop = threading.Event()
    with ServerProcess(os.path.join(options.build, "bin", "ovq-server"), options.model,
                       "--state-memory", "512M", "--threads", str(options.threads)) as server:
        url = server.metrics_url()
        cpu = cpu_seconds(url, 100)
        threads = [threading.Thread(target=answer, args=(server.address, stop))
                   for _ in range(options.answers)]
        for thread in threads:
            thread.start()
        try:
            window(url, 1, True)  # warms up
            plain, scraped, times, size = [], [], [], 0
            for number in range(1, options.passes + 1):
                plain.append(window(url, options.seconds, False)[0])
                mean, some, size = window(url, options.seconds, True)
                scraped.append(mean)
                times += some
                print(f"pass {number}: step {plain[-1] * 1e3:.3f} ms without scrapes, "
                      f"{mean * 1e3:.3f} ms with {SCRAPES_A_SECOND}/s")
        finally:
            stop.set()
            for thread in threads:
                thread.join(30)
    times.sort()
    ratio = statistics.median(b / a for a, b in zip(plain, scraped))
    print(f"a scrape: {cpu * 1e3:.2f} ms of CPU, under load {statistics.median(times) * 1e3:.2f} ms "
          f"(p95 {times[len(times) * 95 // 100] * 1e3:.2f}), {size} bytes")
    print(f"step time with scrapes / without, median of the passes: {ratio:.3f}")


if __name__ == "__main__":
    main()
