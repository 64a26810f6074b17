"""Builds and runs the images with buildah and podman; the base comes from Debian packages."""

import json
import os
import shutil
import subprocess
import tarfile
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
BASE = "docker.io/library/debian:trixie-slim"
# A proxy between the build and PyPI may have a certificate of its own.
CERTIFICATES = Path("/usr/local/share/ca-certificates")
# The date of the images and of every file in their layers.
EPOCH = 1700000000
LIMITS = (
    "--network=host", "--cgroups=disabled", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096",
    "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
)  # fmt: skip
TOOLS = ("buildah", "podman", "mmdebstrap")


def missing_tools():
    return [tool for tool in TOOLS if shutil.which(tool) is None]


class Images:
    """Images in a storage of their own, in FILMGATE_TEST_IMAGES or build/images."""

    def __init__(self):
        self.folder = Path(os.environ.get("FILMGATE_TEST_IMAGES", ROOT / "build/images")).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)

    def command(self, tool, *arguments):
        storage = ["--root", self.folder / "store", "--runroot", self.folder / "run"]
        return [tool, *map(str, storage), *map(str, arguments)]

    def run(self, tool, *arguments):
        return _output(self.command(tool, *arguments))

    def ensure_base(self):
        """A minimal Debian as the base image, unless the storage has one."""
        if BASE in self.run("podman", "images", "--format", "{{.Repository}}:{{.Tag}}").splitlines():
            return
        archive = self.folder / "base.tar"
        mirror = "http://deb.debian.org/debian"
        subprocess.run(["mmdebstrap", "--variant=minbase", "trixie", archive, mirror], check=True)
        with tarfile.open(archive, "a") as tar:
            for certificate in sorted(CERTIFICATES.glob("*.crt")):
                tar.add(certificate, f".{certificate}")
        self.run("podman", "import", archive, BASE)

    def build(self, target, tag, *options):
        self.ensure_base()
        self.run(
            "buildah", "bud", "--pull-never", "--isolation=chroot", "--network=host",
            "--build-arg", f"SOURCE_DATE_EPOCH={EPOCH}", "--timestamp", EPOCH,
            "--build-arg", "VERSION=test", *options,
            "-f", "deploy/Dockerfile", "--target", target, "-t", tag, ".",
        )  # fmt: skip

    def inspect(self, tag):
        return json.loads(self.run("buildah", "inspect", "--type", "image", tag))["OCIv1"]

    def size_bytes(self, tag):
        (found,) = json.loads(self.run("podman", "image", "inspect", tag))
        return found["Size"]

    def digest(self, tag):
        """The digest of the image's configuration, which names the digests of all layers."""
        (found,) = json.loads(self.run("podman", "image", "inspect", tag))
        return found["Id"]

    def python(self, tag, program, *arguments):
        """What a Python program prints in a container of the image, with a read-only root."""
        options = [*LIMITS, "--tmpfs", "/tmp:exec", "--entrypoint", "python"]
        command = self.command("podman", "run", "--rm", *options, tag, "-c", program, *arguments)
        return _output(_in_cgroup2(command))

    @contextmanager
    def mounted(self, tag):
        """The file system of an image."""
        name = self.run("buildah", "from", "--pull-never", tag)
        try:
            yield Path(self.run("buildah", "mount", name))
        finally:
            self.run("buildah", "rm", name)

    @contextmanager
    def container(self, tag, *arguments, data, **environ):
        """A process with a read-only root, without capabilities; its host is that of the test."""
        options = [*LIMITS, "--tmpfs", "/tmp", "--volume", f"{data}:/data"]
        variables = [part for name, value in environ.items() for part in ("--env", f"{name}={value}")]
        command = self.command("podman", "run", "--rm", *options, *variables, tag, *arguments)
        process = subprocess.Popen(_in_cgroup2(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=60)


def _output(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout.strip()


def _in_cgroup2(command):
    """crun refuses a host with cgroups of both versions: give it a mount of version 2."""
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", "/sys/fs/cgroup"], capture_output=True, text=True, check=True
    )
    if kind.stdout.strip() == "cgroup2fs":
        return command
    return ["unshare", "-m", "sh", "-c", 'mount -t cgroup2 none /sys/fs/cgroup && exec "$@"', "sh", *command]


def wait_until_ready(process, port, seconds):
    """Waits for 200 from /readyz on the management port."""

    def is_ready():
        assert process.poll() is None, process.stdout.read().decode()[-3000:]
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    wait_until(is_ready, seconds)
