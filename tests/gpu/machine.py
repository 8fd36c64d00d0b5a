"""Facts of the machine for gpu_run.py: its GPU, clocks, CUDA's tools and libraries, the loopback interface."""

import ctypes
import glob
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time

CUDA_HOME = os.environ.get("CUDA_HOME", "/usr/local/cuda")
CLOCK_FIELDS = ["clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "temperature.gpu",
                "power.draw", "pstate"]
# Sampled during timing. Older drivers have another name for the reasons why clocks are low.
SAMPLED_FIELDS = [["clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", reasons]
                  for reasons in ("clocks_event_reasons.active", "clocks_throttle_reasons.active")]
SAMPLE_SECONDS = 1


def query_gpu(fields):
    """The first GPU's values of nvidia-smi, which is only ever asked."""
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader"],
            capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return None
    lines = answer.stdout.strip().splitlines()
    values = [value.strip() for value in lines[0].split(",")] if lines else []
    return dict(zip(fields, values)) if answer.returncode == 0 and len(values) == len(fields) else None


def ask_driver(library="libcuda.so.1"):
    """The first GPU as the driver's own library describes it, where nvidia-smi is missing."""
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return None
    name, count, version = ctypes.create_string_buffer(256), ctypes.c_int(), ctypes.c_int()
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    asked = [driver.cuInit(0), driver.cuDeviceGetCount(ctypes.byref(count))]
    if any(asked) or count.value == 0:
        return None
    asked += [driver.cuDeviceGet(ctypes.byref(device), 0),
              driver.cuDeviceGetName(name, len(name), device),
              driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device),
              driver.cuDriverGetVersion(ctypes.byref(version))]
    if any(asked):
        return None
    return {"name": name.value.decode(), "driver_version": f"CUDA {version.value}",
            "memory.total": f"{memory.value} bytes"}


class ClockSampler:
    """Samples clocks, and the reasons why they are low, while entered."""

    def __init__(self):
        self.samples = []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.sample, daemon=True)

    def sample(self):
        fields = next((fields for fields in SAMPLED_FIELDS if query_gpu(fields)), None)
        begin = time.monotonic()
        while fields is not None:
            values = query_gpu(fields)
            if values is not None:
                self.samples.append({"seconds": round(time.monotonic() - begin, 1), **values})
            if self.ended.wait(SAMPLE_SECONDS):
                return

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


def find_tool(name):
    """A tool of CUDA's, or None."""
    places = [os.path.join(CUDA_HOME, place, name) for place in ("bin", name)]
    places += sorted(glob.glob(f"/opt/nvidia/nsight-compute/*/{name}"))
    return shutil.which(name) or next((place for place in places if os.path.exists(place)), None)


def cuda_version():
    nvcc = find_tool("nvcc")
    if nvcc is None:
        return None
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"release [\d.]+, V([\d.]+)", text)
    return found.group(1) if found else None


def cuda_library_folders():
    """Folders that may hold cuBLAS: the toolkit's, else those of Python packages."""
    folders = [os.path.join(CUDA_HOME, "lib64")]
    for base in sys.path:
        folders += sorted(glob.glob(os.path.join(base, "nvidia", "*", "lib")))
    return [folder for folder in folders if glob.glob(os.path.join(folder, "libcublasLt.so*"))]


def loopback():
    """"up", or what had to be done: servers of the tests listen on 127.0.0.1."""

    def connect():
        """Returns "up", or the reason why there is no connection."""
        try:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                socket.create_connection(listener.getsockname(), timeout=5).close()
        except OSError as error:
            return f"no connection over 127.0.0.1: {error}"
        return "up"

    reason = connect()
    if reason == "up":
        return reason
    brought = subprocess.run("ip link set lo up", shell=True, capture_output=True, text=True)
    return f"{reason}; after `ip link set lo up` ({brought.stderr.strip() or 'done'}): {connect()}"
