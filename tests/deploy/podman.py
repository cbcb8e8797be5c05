#!/usr/bin/env python3
"""The tests of scripts in containers, with this host's podman instead of what stands in for it:

  podman.py build/dev/test/tests_e2e_test [--user NAME]

Needs root, podman and crun; without them it says that it was skipped. `--user`: as another user of
this host, who has ranges in /etc/subuid and may read the binaries. No registry is asked for
anything.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

IMAGE = "localhost/milepost-test:1"
# crun refuses a v2 hierarchy with controllers beside those of v1. Podman wants POSIX queues.
PREPARE = """
! grep -qs . /sys/fs/cgroup/unified/cgroup.controllers || umount /sys/fs/cgroup/unified
[ -d /dev/mqueue ] || { mkdir /dev/mqueue && mount -t mqueue mqueue /dev/mqueue; }
exec "$@"
"""


def skip(why):
    print(f"SKIPPED: scripts in containers with a real podman: {why}")
    sys.exit(0)


def make_root(root):
    """Nothing but links into /usr, which is mounted from the host."""
    for folder in ("usr", "tmp", "proc", "sys", "dev", "run", "etc"):
        (root / folder).mkdir(parents=True)
    for link in ("bin", "sbin", "lib", "lib64"):
        (root / link).symlink_to(f"usr/{link}")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--user", help="instead of root")
    parser.add_argument("--filter", default="ContainerTest.*")
    options = parser.parse_args()
    if os.geteuid() != 0:
        skip("this is not root")
    for program in ("podman", "crun", "unshare"):
        if shutil.which(program) is None:
            skip(f"there is no {program}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="milepost-podman-"))
    folder.chmod(0o777)
    make_root(folder / "root")
    archive = folder / "image.tar"
    subprocess.run(["tar", "-C", str(folder / "root"), "-cf", str(archive), "."], check=True)
    programs = options.binary.resolve().parents[1] / "bin"
    environment = dict(os.environ, MILEPOST_PODMAN_IMAGE=IMAGE, TMPDIR=str(folder),
                       MILEPOST_BIN_DIR=str(programs))
    enter = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", PREPARE, "sh"]
    if options.user is None:
        # Images and containers of its own, which go away with the folder.
        store = folder / "storage.conf"
        store.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/store"\n'
                         f'runroot = "{folder}/run"\n')
        environment["CONTAINERS_STORAGE_CONF"] = str(store)
    else:
        enter += ["setpriv", f"--reuid={options.user}", f"--regid={options.user}", "--init-groups",
                  "--reset-env", "env", *[f"{name}={environment[name]}" for name in
                                          ("MILEPOST_PODMAN_IMAGE", "MILEPOST_BIN_DIR",
                                           "TMPDIR", "PATH")]]
    print(subprocess.run(["podman", "--version"], text=True, capture_output=True,
                         check=True).stdout.strip(), "as", options.user or "root", flush=True)
    try:
        subprocess.run([*enter, "podman", "import", "--quiet", "--change", "ENV IMAGE_SAYS=hello",
                        "--change", "ENV PYTHONPATH=/of-the-image", str(archive), IMAGE],
                       check=True, env=environment, stdout=subprocess.DEVNULL, cwd=folder)
        done = subprocess.run([*enter, str(options.binary.resolve()),
                               f"--gtest_filter={options.filter}"], env=environment, check=False,
                              cwd=folder)
    finally:
        subprocess.run([*enter, "podman", "rmi", "--force", IMAGE], check=False, env=environment,
                       stdout=subprocess.DEVNULL, cwd=folder)
    if done.returncode == 0:
        shutil.rmtree(folder)
    sys.exit(done.returncode)


main()
