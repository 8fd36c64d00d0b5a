"""Helpers by which the tests of deploy/ read its files."""

import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def read(*path):
    with open(os.path.join(ROOT, *path)) as file:
        return file.read()


def size(text):
    match = re.fullmatch(r"(\d+)([KMGT])i?", text)
    return int(match[1]) * UNITS[match[2]]


def seconds(text):
    match = re.fullmatch(r"(\d+)([smh])", text)
    return int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def port(address):
    return int(address.rsplit(":", 1)[1])
