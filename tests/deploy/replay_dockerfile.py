#!/usr/bin/env python3
"""Executes deploy/docker/Dockerfile without a container engine, and tests the resulting image.

Every stage that the target needs becomes a root folder: debootstrap creates Debian's image, a copy
creates a stage from another one, and every RUN is a command in the root with a process tree of its
own (unshare). The context is what git tracks and Dockerfile.dockerignore leaves in. At the end the
image's ENTRYPOINT and CMD are started in the target's root under the image's user, on free ports of
loopback; the image's ovq-chat streams an answer, and SIGTERM must end the server with 0. Needs root,
debootstrap, a Debian mirror and about 5 GB; takes as long as a build. Layers, networks and limits of
a container are not tested.

usage: replay_dockerfile.py --work FOLDER --mirror URL [--suite bookworm] [--base ROOT]
           [--target cpu] [--toolkit FOLDER]
  --toolkit FOLDER  of the CUDA image: a folder with usr/local/cuda-13.0, for --target cuda
"""

import argparse
import fnmatch
import hashlib
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KNOWN = ("ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "RUN", "STOPSIGNAL", "USER", "WORKDIR")


def read(name):
    with open(os.path.join(ROOT, "deploy", "docker", name)) as file:
        return file.read()


def instructions(text):
    """Parses a Dockerfile: [(NAME, rest)] with comments dropped and continued lines joined."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    result = []
    for line in re.sub(r"\\\n", " ", lines).splitlines():
        if line.strip():
            name, rest = line.split(None, 1)
            if name not in KNOWN:
                sys.exit(f"replay_dockerfile: {name}: expected one of {', '.join(KNOWN)}")
            result.append((name, rest.strip()))
    return result


def stages_of(listed):
    """Returns {name: its instructions, FROM first}, and the arguments before the first stage."""
    stages, arguments = {}, {}
    for name, rest in listed:
        if name == "FROM":
            base, _, stage = rest.partition(" AS ")
            instructions_of = stages[stage] = [(name, base)]
        elif not stages:  # ARG
            key, _, value = rest.partition("=")
            arguments[key] = value
        else:
            instructions_of.append((name, rest))
    return stages, arguments


class Stage:
    """A root folder and the settings of the instructions so far."""

    def __init__(self, root):
        self.root, self.folder, self.user = root, "/", "0:0"
        self.arguments, self.entrypoint, self.command = {}, [], []

    def copy_to(self, root):
        subprocess.run(["cp", "-a", self.root, root], check=True)
        copy = Stage(root)
        copy.folder, copy.user, copy.arguments = self.folder, self.user, dict(self.arguments)
        copy.entrypoint, copy.command = self.entrypoint, self.command
        return copy

    def path(self, inside):
        return os.path.join(self.root, os.path.join(self.folder, inside).lstrip("/"))

    def inside(self, command, user="0:0"):
        """Returns the command line that runs `command` in this root, as process 1 like an image's.
        """
        settings = {**self.arguments, "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                    "DEBIAN_FRONTEND": "noninteractive"}
        uid, gid = user.split(":")
        return ["env", "-i", *(f"{name}={value}" for name, value in settings.items()),
                "unshare", "--mount", "--pid", "--fork", "--kill-child", f"--root={self.root}",
                "--mount-proc", "--setuid", uid, "--setgid", gid, "/bin/sh", "-c",
                f"cd {shlex.quote(self.folder)} && {command}"]

    def run(self, command):
        subprocess.run(self.inside(command), check=True)

    def copy(self, sources, target, inside):
        """inside: the folder to which source paths are relative."""
        into = target.endswith("/") or len(sources) > 1
        for source in sources:
            path = os.path.normpath(os.path.join(inside, source.lstrip("/")))
            place = self.path(target)
            if os.path.isdir(path):  # copies the folder's contents, like Docker
                shutil.copytree(path, place, symlinks=True, dirs_exist_ok=True)
                continue
            if into:
                place = os.path.join(place, os.path.basename(path))
            os.makedirs(os.path.dirname(place), exist_ok=True)
            shutil.copy2(path, place, follow_symlinks=False)


class Replay:
    def __init__(self, args):
        self.args, self.stages = args, {}
        self.instructions, self.arguments = stages_of(instructions(read("Dockerfile")))
        if args.target not in self.instructions:
            sys.exit(f"replay_dockerfile: --target: expected one of {', '.join(self.instructions)}")
        ignored = read("Dockerfile.dockerignore").split()
        self.context = os.path.join(args.work, "context")
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
        for name in listed.stdout.decode().split("\0")[:-1]:
            if any(fnmatch.fnmatch(name, pattern.replace("**/", "*")) or name.startswith(pattern + "/")
                   for pattern in ignored):
                continue
            os.makedirs(os.path.join(self.context, os.path.dirname(name)), exist_ok=True)
            shutil.copy2(os.path.join(ROOT, name), os.path.join(self.context, name),
                         follow_symlinks=False)

    def begin(self, name, base):
        """Creates the root that a stage starts from."""
        root = os.path.join(self.args.work, name)
        if base in self.instructions:
            return self.stage(base).copy_to(root)
        image = self.arguments[base.strip("${}")]
        if not image.startswith("debian:"):
            if self.args.toolkit is None:
                sys.exit(f"replay_dockerfile: {image} is not Debian's: expected --toolkit")
            return Stage(os.path.abspath(self.args.toolkit))
        if self.args.base:
            subprocess.run(["cp", "-a", self.args.base, root], check=True)
        else:
            subprocess.run(["debootstrap", "--variant=minbase", self.args.suite, root,
                            self.args.mirror], check=True)
        with open("/etc/resolv.conf") as ours, open(f"{root}/etc/resolv.conf", "w") as theirs:
            theirs.write(ours.read())
        return Stage(root)

    def stage(self, name):
        """Executes a stage's instructions, unless that was done already."""
        if name not in self.stages:
            (_, base), *rest = self.instructions[name]
            stage = self.begin(name, base)
            for instruction in rest:
                self.carry_out(stage, *instruction)
            self.stages[name] = stage
        return self.stages[name]

    def carry_out(self, stage, name, rest):
        origin = re.match(r"--from=(\S+) ", rest)
        root = self.stage(origin[1]).root if origin else self.context
        print(f"== {os.path.basename(stage.root)}: {name} {rest}", flush=True)
        if name in ("ARG", "ENV"):
            stage.arguments.update(word.partition("=")[::2] for word in shlex.split(rest))
        elif name == "WORKDIR":
            stage.folder = rest
            os.makedirs(stage.path(""), exist_ok=True)
        elif name == "COPY":
            *sources, target = rest[origin.end() if origin else 0:].split()
            stage.copy(sources, target, root)
        elif name == "RUN":
            stage.run(rest)
        elif name == "USER":
            stage.user = rest
        elif name in ("ENTRYPOINT", "CMD"):
            setattr(stage, {"ENTRYPOINT": "entrypoint", "CMD": "command"}[name], json.loads(rest))

    def try_image(self):
        image = self.stage(self.args.target)
        # Mounts and files that the user of the image and its client provide.
        secrets = os.path.join(image.root, "run", "secrets")
        os.makedirs(secrets, exist_ok=True)
        token = os.urandom(32).hex()
        tenant = {"name": "me", "token_sha256": [hashlib.sha256(token.encode()).hexdigest()]}
        for name, text in (("ovq-tenants", json.dumps({"tenants": [tenant]})), ("token", token)):
            with open(os.path.join(secrets, name), "w") as file:
                file.write(text)
        # Uses this machine's loopback addresses instead of the container's own.
        command = [re.sub(r"^0\.0\.0\.0:\d+$", "127.0.0.1:0", word)
                   for word in image.entrypoint + image.command]
        server = subprocess.Popen(image.inside("exec " + shlex.join(command), image.user),
                                  stdout=subprocess.PIPE, text=True)
        try:
            ready, _, _ = select.select([server.stdout], [], [], 120)
            line = server.stdout.readline() if ready else ""
            if not line.startswith("listening on "):
                sys.exit(f"replay_dockerfile: the server is not ready: {line!r}")
            chat = ["ovq-chat", "--server", line.split()[-1], "--token-file", "/run/secrets/token", "--prompt", "def main():",
                    "--max-tokens", "40", "--temperature", "0"]
            answer = subprocess.run(image.inside(shlex.join(chat), image.user), check=True,
                                    capture_output=True, text=True, timeout=120).stdout
            with open(f"/proc/{server.pid}/task/{server.pid}/children") as file:
                os.kill(int(file.read()), signal.SIGTERM)  # unshare does not forward the signal
            status = server.wait(60)
        finally:
            server.kill()
            server.wait()
        if len(answer) < 40 or status != 0:
            sys.exit(f"replay_dockerfile: answer {answer!r}, exit status {status}")
        print(f"== answered {answer!r}, ended with 0")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--work", required=True, help="folder for the roots, made and kept")
    parser.add_argument("--mirror", default="", help="URL of a Debian mirror, for debootstrap")
    parser.add_argument("--suite", default="bookworm")
    parser.add_argument("--base", help="a root that debootstrap made before, to be copied instead")
    parser.add_argument("--target", default="cpu", help="stage of the Dockerfile")
    parser.add_argument("--toolkit", help="root that has the CUDA image's usr/local/cuda-13.0")
    args = parser.parse_args()
    if not args.base and not args.mirror:
        parser.error("--mirror or --base: expected one of them")
    os.makedirs(args.work)
    Replay(args).try_image()


if __name__ == "__main__":
    main()
