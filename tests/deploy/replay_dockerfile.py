#!/usr/bin/env python3
"""Carries out deploy/docker/Dockerfile without a container engine, and tries what comes out.

Every FROM becomes a Debian root of its own made by debootstrap, every RUN a command in it, with a
process tree of its own (unshare); the context is what git tracks. At the end the image's ENTRYPOINT and CMD are started in the last root
under the image's user, on free ports of loopback, an answer is streamed by the image's ovq-chat, and
SIGTERM has to end the server with 0. Needs root, debootstrap, a Debian mirror and about 3 GB; takes
as long as a build does. Layers, networks and limits of a container are not tried.

usage: replay_dockerfile.py --work FOLDER --mirror URL [--suite bookworm] [--base ROOT]
"""

import argparse
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
KNOWN = ("ARG", "CMD", "COPY", "ENTRYPOINT", "EXPOSE", "FROM", "RUN", "STOPSIGNAL", "USER", "WORKDIR")


def instructions(text):
    """[(NAME, rest)] with comments dropped and continued lines joined."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    result = []
    for line in re.sub(r"\\\n", " ", lines).splitlines():
        if line.strip():
            name, rest = line.split(None, 1)
            if name not in KNOWN:
                sys.exit(f"replay_dockerfile: {name}: expected one of {', '.join(KNOWN)}")
            result.append((name, rest.strip()))
    return result


class Stage:
    """One FROM: a root, and what the instructions so far have set."""

    def __init__(self, root):
        self.root, self.folder, self.user = root, "/", "0:0"
        self.arguments, self.entrypoint, self.command = {}, [], []

    def path(self, inside):
        return os.path.join(self.root, os.path.join(self.folder, inside).lstrip("/"))

    def inside(self, command, user="0:0"):
        """The words of a command that runs `command` in this root, as process 1 like an image's."""
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
        """inside: the folder that sources start from."""
        into = target.endswith("/") or len(sources) > 1
        for source in sources:
            path = os.path.normpath(os.path.join(inside, source.lstrip("/")))
            place = self.path(target)
            if os.path.isdir(path):  # a folder's contents, as Docker has it
                shutil.copytree(path, place, symlinks=True, dirs_exist_ok=True)
                continue
            if into:
                place = os.path.join(place, os.path.basename(path))
            os.makedirs(os.path.dirname(place), exist_ok=True)
            shutil.copy2(path, place, follow_symlinks=False)


class Replay:
    def __init__(self, args):
        self.args, self.stages, self.names = args, [], {}
        self.global_arguments = {}
        self.context = os.path.join(args.work, "context")
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
        for name in listed.stdout.decode().split("\0")[:-1]:
            os.makedirs(os.path.join(self.context, os.path.dirname(name)), exist_ok=True)
            shutil.copy2(os.path.join(ROOT, name), os.path.join(self.context, name),
                         follow_symlinks=False)

    def begin(self, rest):
        root = os.path.join(self.args.work, f"stage{len(self.stages)}")
        if self.args.base:
            subprocess.run(["cp", "-a", self.args.base, root], check=True)
        else:
            subprocess.run(["debootstrap", "--variant=minbase", self.args.suite, root,
                            self.args.mirror], check=True)
        with open("/etc/resolv.conf") as ours, open(f"{root}/etc/resolv.conf", "w") as theirs:
            theirs.write(ours.read())
        self.stages.append(Stage(root))
        if " AS " in rest:
            self.names[rest.split(" AS ")[1]] = self.stages[-1]

    def carry_out(self, name, rest):
        stage = self.stages[-1] if self.stages else None
        print(f"== {name} {rest}", flush=True)
        if name == "FROM":
            self.begin(rest)
        elif name == "ARG":
            key, _, value = rest.partition("=")
            (self.global_arguments if stage is None else stage.arguments)[key] = value
        elif name == "WORKDIR":
            stage.folder = rest
            os.makedirs(stage.path(""), exist_ok=True)
        elif name == "COPY":
            origin = re.match(r"--from=(\S+) ", rest)
            *sources, target = rest[origin.end() if origin else 0:].split()
            stage.copy(sources, target, self.names[origin[1]].root if origin else self.context)
        elif name == "RUN":
            stage.run(rest)
        elif name == "USER":
            stage.user = rest
        elif name in ("ENTRYPOINT", "CMD"):
            setattr(stage, {"ENTRYPOINT": "entrypoint", "CMD": "command"}[name], json.loads(rest))

    def try_image(self):
        image = self.stages[-1]
        # What whoever runs the image mounts, and its client has.
        secrets = os.path.join(image.root, "run", "secrets")
        os.makedirs(secrets, exist_ok=True)
        token = os.urandom(32).hex()
        tenant = {"name": "me", "token_sha256": [hashlib.sha256(token.encode()).hexdigest()]}
        for name, text in (("ovq-tenants", json.dumps({"tenants": [tenant]})), ("token", token)):
            with open(os.path.join(secrets, name), "w") as file:
                file.write(text)
        # Addresses of this machine's loopback instead of the container's own.
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
                os.kill(int(file.read()), signal.SIGTERM)  # unshare does not pass it on
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
    args = parser.parse_args()
    if not args.base and not args.mirror:
        parser.error("--mirror or --base: expected one of them")
    os.makedirs(args.work)
    replay = Replay(args)
    with open(os.path.join(ROOT, "deploy", "docker", "Dockerfile")) as file:
        for name, rest in instructions(file.read()):
            replay.carry_out(name, rest)
    replay.try_image()


if __name__ == "__main__":
    main()
