"""`filmgate bench fidelity`: how far the fast decoder is from a float32 decode, beside the exact one."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from filmgate.cli.bench import where


def fidelity(
    vae: Annotated[str, typer.Option(help="A full-size VAE with random weights.")] = "wan2.1",
    size: Annotated[str, typer.Option(help="WIDTHxHEIGHT.")] = "832x480",
    frames: Annotated[int, typer.Option(help="Length of the clip.")] = 33,
    is_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """The error of the fast decoder and of the VAE's own layers against float32, on fresh latents."""
    from filmgate.settings import load_settings

    settings = load_settings().pipeline
    from filmgate.pipeline.bench.fidelity import compare
    from filmgate.pipeline.bench.setup import open_bench

    running, about = open_bench(vae, size, frames, 1, settings)
    found = compare(running.vae, running.draw)
    if is_json:
        typer.echo(json.dumps({"bench": "fidelity", **about, **where(), **asdict(found)}))
        return
    typer.echo(f"{vae} {size}, {frames} frames: error against float32, in relative norm")
    for name, one in (("exact", found.exact), ("fast", found.fast)):
        typer.echo(f"{name:<8}{one.relative_error:>10.5f}   worst frame {one.worst_frame_error:.5f}")
    typer.echo(f"fast / exact: {found.error_ratio:.3f}, worst frame {found.worst_frame_ratio:.3f}")
    typer.echo(f"by place in a chunk: {found.seam:.1%}")
