"""The images, built and run for real where buildah and podman are present."""

import json
import os
import signal
from pathlib import Path

import httpx
import pytest

import filmgate
from deploy.tests.constraints import normalise, read_constraints
from deploy.tests.images import Images, missing_tools, wait_until_ready
from tests.contract.test_kernels_compile import CASES, COMPILE
from tests.server_process import free_port

USER = 10001
START_SECONDS = 120
# The launcher is linked to libcuda on a host with a driver; here it is compiled only.
LAUNCHER = """
from pathlib import Path
import torch
from triton.backends.nvidia import driver
from triton.runtime.build import _build

source = Path(driver.__file__).parent / "driver.c"
assert Path(_build("cuda_utils", str(source), "/tmp", [], driver.include_dirs, [], [])).is_file()
print("CUDA", torch.version.cuda)
"""
pytestmark = pytest.mark.skipif(bool(missing_tools()), reason=f"needs {', '.join(missing_tools())}")
# The worker image downloads CUDA: several GB, and half an hour on a small machine.
IMAGES = ["server", *(["worker"] if os.environ.get("FILMGATE_TEST_WORKER_IMAGE") else [])]


@pytest.fixture(scope="module")
def images():
    return Images()


@pytest.fixture(scope="module", params=IMAGES)
def image(request, images):
    tag = f"filmgate-{request.param}:test"
    images.build(request.param, tag, "--no-cache")
    return tag


def start(images, image, folder, port, management):
    folder.mkdir()
    os.chown(folder, USER, USER)
    arguments = ["serve", *(["--no-worker"] if "server" in image else [])]
    return images.container(
        image, *arguments, data=folder, FILMGATE_API__HOST="127.0.0.1", FILMGATE_API__PORT=port,
        FILMGATE_MANAGEMENT__PORT=management,
    )  # fmt: skip


def find_server(port):
    """The process id of the server of this test: the one whose environment has its port."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            is_server = f"FILMGATE_API__PORT={port}".encode() in (entry / "environ").read_bytes().split(b"\0")
            if is_server and b"filmgate" in (entry / "cmdline").read_bytes() and entry.stat().st_uid == USER:
                return int(entry.name)
        except OSError:
            continue  # the process has ended meanwhile
    raise AssertionError("no server process")


def test_the_image_starts_read_only_without_capabilities_is_healthy_and_drains(images, image, tmp_path):
    port, management = free_port(), free_port()
    with start(images, image, tmp_path / "data", port, management) as process:
        wait_until_ready(process, management, START_SECONDS)
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == httpx.codes.OK
        server = find_server(port)
        status = dict(line.split(":", 1) for line in Path(f"/proc/{server}/status").read_text().splitlines())
        assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
        assert status["NoNewPrivs"].strip() == "1"
        mounts = Path(f"/proc/{server}/mounts").read_text().splitlines()
        (root,) = [line.split()[3].split(",") for line in mounts if line.split()[1] == "/"]
        assert "ro" in root
        os.kill(server, signal.SIGTERM)
        assert process.wait(START_SECONDS) == 0


def test_the_image_has_a_user_labels_and_an_sbom_and_no_installers(images, image):
    config = images.inspect(image)["config"]
    assert (config["User"], config["Entrypoint"]) == (f"{USER}:{USER}", ["filmgate"])
    assert config["Labels"]["org.opencontainers.image.version"] == "test"
    with images.mounted(image) as root:
        sbom = json.loads((root / "opt/filmgate/sbom.cdx.json").read_text())
        assert sbom["bomFormat"] == "CycloneDX"
        names = {component["name"] for component in sbom["components"]}
        assert {"filmgate", "fastapi", "boto3"} <= names
        assert ("torch" in names) is ("worker" in image)
        # torch requires setuptools from Python 3.12 on.
        assert {"pip", "setuptools"} & names == ({"setuptools"} if "worker" in image else set())
        tools = {tool for tool in ("pip", "pip3", "gcc", "make") for _ in root.glob(f"**/bin/{tool}")}
        assert tools == ({"gcc"} if "worker" in image else set())
        assert list((root / "var/lib/apt/lists").iterdir()) == []


def test_every_package_of_the_image_has_the_version_that_the_tests_use(images, image):
    """Otherwise two images of one version would differ as soon as PyPI has a new release of any package."""
    with images.mounted(image) as root:
        sbom = json.loads((root / "opt/filmgate/sbom.cdx.json").read_text())
    installed = {normalise(part["name"]): part["version"] for part in sbom["components"]}
    assert installed.pop("filmgate") == filmgate.__version__
    pinned = read_constraints()
    assert {name: version for name, version in installed.items() if pinned.get(name) != version} == {}


def test_triton_compiles_the_kernels_and_their_launcher_in_the_worker_image(images, image):
    """What `finish-image` removes is not needed, and the C compiler and its headers are complete (ADR 95)."""
    if "worker" not in image:
        pytest.skip("the server image has no torch")
    built = images.python(image, COMPILE, json.dumps(CASES)).splitlines()
    assert len(built) == len(CASES)
    assert images.python(image, LAUNCHER) == "CUDA 13.0", "update the tags in docs/deploy.md and in the chart"


def test_the_same_sources_and_date_give_the_same_image(images, image):
    again = image.replace(":test", ":again")
    images.build(image.removeprefix("filmgate-").removesuffix(":test"), again, "--no-cache")
    layers = [images.inspect(tag)["rootfs"]["diff_ids"] for tag in (image, again)]
    assert layers[0] == layers[1]
    assert images.digest(image) == images.digest(again)


def test_the_sizes_are_those_of_the_docs(images, image, record_property):
    """Within a fifth: Debian and the dependencies change."""
    megabytes = images.size_bytes(image) / 1e6
    record_property("megabytes", megabytes)
    documented = {"filmgate-server:test": 374, "filmgate-worker:test": 5686}[image]
    assert abs(megabytes - documented) < 0.2 * documented, (
        f"{image} has {megabytes:.0f} MB: update docs/deploy.md"
    )
