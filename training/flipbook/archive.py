"""Moves results between machines: packs files into tar archives with parts of at most 15 MiB."""

import argparse
import io
import tarfile
from pathlib import Path

PART_BYTES = 15 * 2**20


def pack(sources: list[Path], out: Path, name: str) -> list[Path]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for source in sources:
            archive.add(source, arcname=source.name)
    content = buffer.getbuffer()
    parts = []
    for number, start in enumerate(range(0, len(content), PART_BYTES)):
        part = out / f"{name}.tar.{number:02d}"
        part.write_bytes(content[start : start + PART_BYTES])
        parts.append(part)
    return parts


def unpack(folder: Path, name: str, out: Path) -> None:
    parts = sorted(folder.glob(f"{name}.tar.*"))
    if not parts:
        raise SystemExit(f"no parts named {name}.tar.* in {folder}")
    content = io.BytesIO(b"".join(part.read_bytes() for part in parts))
    with tarfile.open(fileobj=content) as archive:
        archive.extractall(out, filter="data")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack")
    packing.add_argument("sources", type=Path, nargs="+")
    packing.add_argument("--out", type=Path, required=True)
    packing.add_argument("--name", required=True)
    unpacking = commands.add_parser("unpack")
    unpacking.add_argument("--folder", type=Path, required=True)
    unpacking.add_argument("--name", required=True)
    unpacking.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "pack":
        options.out.mkdir(parents=True, exist_ok=True)
        for part in pack(options.sources, options.out, options.name):
            print(part, part.stat().st_size)
    else:
        options.out.mkdir(parents=True, exist_ok=True)
        unpack(options.folder, options.name, options.out)


if __name__ == "__main__":
    main()
