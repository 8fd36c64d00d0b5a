#!/usr/bin/python3
"""The Debian packages in a fresh Debian 12 (debootstrap): installs, starts, calls, upgrades and
purges them.

Makes the packages of a build by CPack, in two versions. Needs root, debootstrap and a Debian mirror;
without them it prints SKIPPED and succeeds. Takes minutes, so ctest does not run it.

usage: debian_packages.py --build BUILD_FOLDER [--root FOLDER]
  --root FOLDER  an existing Debian 12 (debootstrap --variant=minbase bookworm FOLDER), of which a copy is used
"""

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MIRROR = "http://deb.debian.org/debian"
PACKAGES = {"ovq-server", "ovq-clients", "ovq-server-dev", "ovq-server-doc"}


def skip(why):
    print(f"SKIPPED: {why}")
    sys.exit(0)


def run(*command, **more):
    result = subprocess.run(command, capture_output=True, text=True, **more)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


def check(condition, what):
    print(("ok      " if condition else "FAILED  ") + what, flush=True)
    if not condition:
        sys.exit(1)


def make_packages(build, folder, version=None):
    more = ["-D", f"CPACK_PACKAGE_VERSION={version}"] if version else []
    run("cpack", "--config", os.path.join(build, "CPackConfig.cmake"), "-B", folder, *more)
    found = {os.path.basename(path).split("_")[0]: path
             for path in glob.glob(os.path.join(folder, "*.deb"))}
    check(set(found) == PACKAGES, f"CPack makes {', '.join(sorted(found))}")
    return found


class Root:
    """A Debian system in a folder."""

    def __init__(self, folder):
        self.folder = folder
        # Prevents the start of services at the installation of packages, as in a container.
        self.write("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n", 0o755)
        self.mounted = []
        for kind in ("proc", "dev"):
            target = folder + "/" + kind
            source = ["-t", "proc", "proc"] if kind == "proc" else ["--bind", "/dev"]
            run("mount", *source, target)
            self.mounted.append(target)

    def close(self):
        for target in self.mounted:
            run("umount", "-l", target)

    def path(self, inside):
        return self.folder + inside

    def write(self, inside, text, mode=0o644):
        with open(self.path(inside), "w") as file:
            file.write(text)
        os.chmod(self.path(inside), mode)

    def read(self, inside):
        with open(self.path(inside)) as file:
            return file.read()

    def do(self, *command):
        return run("chroot", self.folder, "env", "DEBIAN_FRONTEND=noninteractive", *command)

    def install(self, packages):
        inside = []
        for path in packages:
            shutil.copy(path, self.path("/tmp/"))
            inside.append("/tmp/" + os.path.basename(path))
        self.do("apt-get", "install", "-y", "-q", "--no-install-recommends", *inside)

    def start_server(self):
        """Starts the unit's command; returns the process and its address."""
        unit = self.read("/usr/lib/systemd/system/ovq-server.service")
        (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
        self.do(*command.split(), "--check-config")
        user = ["--userspec=ovq-server:ovq-server"]
        process = subprocess.Popen(["chroot", *user, self.folder, *command.split(), "--listen",
                                    "127.0.0.1:0", "--metrics-address", "", "--state-memory", "256M"],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = process.stdout.readline()
        return process, line.strip().removeprefix("listening on ")

    def ask(self, address):
        return self.do("ovq-chat", "--server", address, "--prompt", "import os", "--max-tokens", "20",
                       "--temperature", "0.8", "--seed", "1")


def stop(process):
    process.terminate()
    return process.wait(60)


def go_through(root, first, second):
    root.install([first["ovq-server"], first["ovq-clients"]])
    check("ovq-server" in root.read("/etc/passwd"), "the package made its user (sysusers)")
    process, address = root.start_server()
    answer = root.ask(address)
    check(len(answer) > 0, f"the server of the package answers: {answer[:40]!r}")
    check(stop(process) == 0, "and ends well")

    marked = root.read("/etc/ovq-server/ovq-server.conf") + "# edited here\nmax-sessions = 7\n"
    root.write("/etc/ovq-server/ovq-server.conf", marked)
    os.makedirs(root.path("/var/lib/ovq-server"), exist_ok=True)
    before = root.do("ovq-server", "--version")
    root.install([second["ovq-server"], second["ovq-clients"]])
    version = root.do("dpkg-query", "-W", "-f", "${Version}", "ovq-server")
    check(version == "99.1", "is upgraded")
    check(root.read("/etc/ovq-server/ovq-server.conf") == marked, "keeps the edited configuration")
    check("max-sessions = 7" in root.do("ovq-server", "--check-config", "--config",
                                        "/etc/ovq-server/ovq-server.conf"), "and reads it")
    check(root.do("ovq-server", "--version") == before, "runs as before")
    process, address = root.start_server()
    check(len(root.ask(address)) > 0, "answers after the upgrade")
    stop(process)

    root.install([second["ovq-server-dev"], second["ovq-server-doc"]])
    check(os.path.isfile(root.path("/usr/include/ovq/v1/inference.proto")), "ovq-server-dev has the protos")
    doc = "/usr/share/doc/ovq-server"
    check(os.path.isfile(root.path(doc + "/docs/serving.md")), "ovq-server-doc has the texts")

    root.do("apt-get", "remove", "-y", "-q", "ovq-server")
    check(os.path.isfile(root.path("/etc/ovq-server/ovq-server.conf")), "removal keeps the configuration")
    root.do("apt-get", "purge", "-y", "-q", *sorted(PACKAGES))
    left = [path for path in ("/etc/ovq-server", "/var/lib/ovq-server", "/usr/lib/ovq-server",
                              "/usr/share/ovq-server", doc, "/usr/bin/ovq-server",
                              "/usr/include/ovq") if os.path.lexists(root.path(path))]
    check(left == [], f"purging leaves nothing behind {left or ''}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--root")
    options = parser.parse_args()
    if os.geteuid() != 0:
        skip("needs root")
    for program in ("debootstrap", "cpack", "dpkg-shlibdeps"):
        if shutil.which(program) is None and not (program == "debootstrap" and options.root):
            skip(f"no {program} here")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ovq_debian_") as folder:
        first = make_packages(options.build, os.path.join(folder, "first"))
        second = make_packages(options.build, os.path.join(folder, "second"), version="99.1")
        debian = os.path.join(folder, "root")
        if options.root:
            run("cp", "-a", options.root, debian)
        else:
            made = subprocess.run(["debootstrap", "--variant=minbase", "bookworm", debian, MIRROR],
                                  capture_output=True, text=True)
            if made.returncode != 0:
                skip(f"debootstrap cannot run here: {made.stdout[-200:]}")
        root = Root(debian)
        try:
            root.do("apt-get", "update", "-q")
            go_through(root, first, second)
        finally:
            root.close()
    print(f"all well, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
