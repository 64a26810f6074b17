"""The Dockerfile: hadolint, and the rules that hadolint does not know."""

import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

from deploy.tests.constraints import normalise, read_constraints

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy/Dockerfile"


def stages():
    """The instructions of each stage, without comments and with joined lines."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found, name = {}, ""
    for line in filter(None, text.splitlines()):
        if line.startswith("FROM "):
            _, parent, _, name = line.split()
            found[name] = (parent, [])
        elif name:
            found[name][1].append(line)
    return found


def instructions(stage):
    """The instructions of a stage and of the stages it starts from."""
    parent, own = stages()[stage]
    return ([] if parent not in stages() else instructions(parent)) + own


def test_hadolint_has_no_complaint():
    hadolint = Path(sys.executable).parent / "hadolint"
    found = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


def test_the_file_needs_no_buildkit():
    text = DOCKERFILE.read_text()
    assert not re.search(r"^# syntax=|--mount=|<<|--chmod|--link", text, flags=re.MULTILINE)
    assert text.split("ARG ")[1].startswith("BASE=debian:trixie-slim\n")


def test_both_images_run_as_a_user_without_installers_and_the_worker_has_what_triton_needs():
    """The C compiler is in the worker image alone: ADR 95."""
    for image in ("server", "worker"):
        lines = instructions(image)
        users = [line for line in lines if line.startswith("USER ")]
        assert users[-1] == "USER 10001:10001"
        installed = " ".join(line for line in lines if "apt-get install" in line)
        assert "python3" in installed
        assert not re.search(r"pip|venv|build-essential|cuda", installed)
        assert ("gcc" in installed, "libpython3-dev" in installed) == (image == "worker",) * 2
        assert not any(line.startswith(("COPY src", "COPY .", "ADD ")) for line in lines)


def test_only_the_worker_image_contains_the_worker_extra():
    extras = [line for line in instructions("build-worker") if line.startswith("ARG WORKER_EXTRAS=")]
    assert extras == ["ARG WORKER_EXTRAS=worker,aws,telemetry"]
    assert any('".[${WORKER_EXTRAS}]"' in line for line in instructions("build-worker"))
    assert not any("worker" in line for line in instructions("build-server") if line.startswith("RUN"))
    (copied,) = [line for line in instructions("server") if line.startswith("COPY --from")]
    assert copied == "COPY --from=build-server /opt/filmgate /opt/filmgate"


def test_volumes_of_the_documented_commands_belong_to_the_user_of_the_image():
    """Docker creates the folder of any other volume for root, and the process cannot write to it."""
    owned = re.findall(r"install -d -o 10001 -g 10001 (\S+)", DOCKERFILE.read_text())
    commands = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    mounted = set(re.findall(r"-v [a-z]+:(/[\w/]+)", commands))
    assert mounted == set(owned) == {"/data"}


def test_models_of_the_hub_are_pulled_into_the_volume_and_not_into_memory():
    """/tmp is a tmpfs in the documented commands."""
    (volume,) = [line.removeprefix("VOLUME ") for line in instructions("worker") if line.startswith("VOLUME")]
    (environ,) = [line for line in instructions("worker") if line.startswith("ENV PATH")]
    assert re.search(r"HF_HOME=(\S+)", environ)[1].startswith(f"{volume}/")


def test_the_build_context_contains_what_the_dockerfile_copies_and_nothing_else():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    copied = set()
    for line in (line for _, lines in stages().values() for line in lines):
        if line.startswith("COPY ") and "--from" not in line:
            copied |= set(line.split()[1:-1])
    assert copied == allowed
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_the_sbom_is_written_after_the_installer_is_gone_and_before_the_dates_are_set():
    script = (ROOT / "deploy/finish-image").read_text()
    steps = ['pip" uninstall', "cyclonedx-py", "compileall", "touch"]
    places = [script.index(step) for step in steps]
    assert places == sorted(places)


def test_the_tests_run_with_the_versions_that_the_images_have():
    """torch may be a build for CPUs, 2.13.0+cpu."""
    pinned = read_constraints()
    installed = {normalise(one.name): one.version.partition("+")[0] for one in distributions()}
    assert installed.keys() >= {"torch", "triton", "diffusers", "av", "fastapi"}
    common = installed.keys() & pinned.keys()
    assert {name: installed[name] for name in common} == {name: pinned[name] for name in common}


def test_the_packages_of_flash_attention_are_pinned_for_images_that_ask_for_them():
    """The extra is not in any environment here: its packages are compared with those that pip resolved."""
    wanted = {"flash-attn-4", "nvidia-cutlass-dsl", "quack-kernels", "apache-tvm-ffi", "einops"}
    pinned = read_constraints()
    assert wanted <= pinned.keys()
    extra = re.search(r"flash-attn-4\[cu13\]==([\w.]+)", (ROOT / "pyproject.toml").read_text())
    assert pinned["flash-attn-4"] == extra[1]
