"""Holds a process to a part of the processors' time, by a control group of its own (version 1 or 2)."""

import os
import time

ROOT = "/sys/fs/cgroup"
WEIGHT = 100  # times that of a group by default, so that other work on the machine takes little of the quota
PERIOD = 10_000  # microseconds; short, so that a process at its quota stands still for less than that


class QuotaError(Exception):
    """No control group can be made or written here; says which file and why."""


class CpuQuota:
    """with CpuQuota(share, pid): the process has `share` of each processor's time. It is moved with all its
    threads, so it may have looked at the number of processors before: they are slower, not fewer."""

    def __init__(self, share, pid):
        self._pid = pid
        self._version_2 = os.path.exists(os.path.join(ROOT, "cgroup.controllers"))
        self._parent = ROOT if self._version_2 else os.path.join(ROOT, "cpu")
        self._folder = os.path.join(self._parent, f"ovq-campaign-{os.getpid()}")
        quota = max(1000, round(share * PERIOD * len(os.sched_getaffinity(0))))  # the least that may be set
        try:
            if self._version_2:
                self._enable()
            os.mkdir(self._folder)
        except OSError as error:
            raise QuotaError(f"no control group for the quota: {error}") from error
        try:
            if self._version_2:
                self._write(self._folder, "cpu.max", f"{quota} {PERIOD}")
                self._write(self._folder, "cpu.weight", 100 * WEIGHT)
            else:
                self._write(self._folder, "cpu.cfs_period_us", PERIOD)
                self._write(self._folder, "cpu.cfs_quota_us", quota)
                self._write(self._folder, "cpu.shares", 1024 * WEIGHT)
            self._write(self._folder, "cgroup.procs", pid)
        except OSError as error:
            self.remove()
            raise QuotaError(f"the control group takes no quota: {error}") from error

    def _enable(self):
        """Lets groups below the root have quotas."""
        with open(os.path.join(self._parent, "cgroup.subtree_control"), encoding="ascii") as file:
            if "cpu" in file.read().split():
                return
        self._write(self._parent, "cgroup.subtree_control", "+cpu")

    @staticmethod
    def _write(folder, name, value):
        with open(os.path.join(folder, name), "w", encoding="ascii") as file:
            file.write(str(value))

    def remove(self):
        """Moves the process back, where it still lives, and removes the group."""
        try:
            self._write(self._parent, "cgroup.procs", self._pid)
        except OSError:
            pass  # it has ended
        for _ in range(50):  # the group is busy until its processes are gone
            try:
                os.rmdir(self._folder)
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()
