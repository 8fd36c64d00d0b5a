"""Makes a corpus of texts for train.py from Python packages of Debian, which apt-get downloads.

--packages names them, one a line, those that are held out with `held-out` behind the name. A text is what a package has
below dist-packages: its .py files in the order of their paths, each after a line `# file: PATH`, up to --most bytes. Files
of more than 100,000 bytes are left out, as most of them are tables, and files that are not UTF-8. The texts become
OUT/train/PACKAGE.txt and OUT/held-out/PACKAGE.txt, which nothing publishes: each has its package's licence."""

import argparse
import os
import subprocess
import sys
import tempfile

PARTS = ("train", "held-out")
_LARGEST_FILE = 100_000


def read_packages(path):
    """Returns {package: its part of the corpus, one of PARTS}."""
    packages = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            name, *part = line.split()
            if part not in ([], ["held-out"]) or name in packages:
                raise ValueError(f"{path}: {line.strip()!r} is not PACKAGE or PACKAGE held-out, each once")
            packages[name] = part[0] if part else "train"
    return packages


def package_text(folder, most):
    """Returns the text, as bytes, of a package that is unpacked in folder: at most `most` bytes."""
    paths = []
    for at, _, names in os.walk(folder):
        paths += [os.path.join(at, name) for name in names if name.endswith(".py")]
    parts, size = [], 0
    for path in sorted(path for path in paths if f"{os.sep}dist-packages{os.sep}" in path and not os.path.islink(path)):
        with open(path, "rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        try:
            content.decode()
        except UnicodeDecodeError:
            continue
        name = path.split(f"{os.sep}dist-packages{os.sep}", maxsplit=1)[1]
        part = b"# file: " + name.encode() + b"\n" + content
        if len(content) <= _LARGEST_FILE and size + len(part) <= most:
            parts.append(part)
            size += len(part)
    return b"".join(parts)


def write_text(out, part, package, text):
    """Writes the text of a package to a part of the corpus; the other part must not keep one of an earlier list."""
    for other in PARTS:
        path = os.path.join(out, other, f"{package}.txt")
        if other == part:
            with open(path, "wb") as file:
                file.write(text)
        elif os.path.exists(path):
            os.remove(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", required=True, metavar="FILE", help="names of Debian packages")
    parser.add_argument("--out", required=True, metavar="FOLDER")
    parser.add_argument("--most", type=int, default=500_000, metavar="BYTES", help="of one text (default 500000)")
    args = parser.parse_args()
    packages, total = read_packages(args.packages), dict.fromkeys(PARTS, 0)
    for part in PARTS:
        os.makedirs(os.path.join(args.out, part), exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        # apt-get runs as the caller, since its own user may not write here.
        subprocess.run(["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *packages], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL)
        for name in os.listdir(folder):
            package, unpacked = name.split("_", maxsplit=1)[0], os.path.join(folder, "unpacked", name)
            os.makedirs(unpacked)
            subprocess.run(["dpkg", "-x", os.path.join(folder, name), unpacked], check=True)
            text = package_text(unpacked, args.most)
            if not text:
                raise ValueError(f"{package}: no Python sources below dist-packages")
            write_text(args.out, packages[package], package, text)
            total[packages[package]] += len(text)
    print(", ".join(f"{args.out}/{part}: {total[part]} bytes" for part in PARTS))


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        sys.exit(f"package_texts.py: {error}")
