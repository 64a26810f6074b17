"""Contact sheets of rendered scenes; the evaluation uses the same layout."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from training.flipbook.captions import write_caption
from training.flipbook.renderer import Format, Renderer, plan_scenes
from training.flipbook.scenes import OBJECTS, SETTINGS, Actor, Scene, sample_training_scene

CAPTION_PIXELS = 16


def to_pixels(clip: Tensor) -> np.ndarray:
    """[3, frames, height, width] in -1 .. 1 to uint8 [frames, height, width, 3]."""
    return ((clip.clamp(-1, 1) + 1) * 127.5).round().byte().permute(1, 2, 3, 0).cpu().numpy()


def draw_sheet(strips: Sequence[np.ndarray], captions: Sequence[str], columns: int) -> Image.Image:
    """A grid with one strip of frames per clip and its caption underneath."""
    tiles = [np.concatenate(list(strip), axis=1) for strip in strips]
    height, width = tiles[0].shape[0] + CAPTION_PIXELS, tiles[0].shape[1] + 4
    rows = -(-len(tiles) // columns)
    page = Image.new("RGB", (width * columns, height * rows), "white")
    pen = ImageDraw.Draw(page)
    for index, (tile, caption) in enumerate(zip(tiles, captions, strict=True)):
        left, top = index % columns * width, index // columns * height
        page.paste(Image.fromarray(tile), (left, top))
        pen.text((left + 2, top + height - CAPTION_PIXELS + 2), caption[: width // 6], fill="black")
    return page


def pick_frames(clip: np.ndarray, count: int) -> np.ndarray:
    return clip[np.linspace(0, len(clip) - 1, count).round().astype(int)]


def catalogue_scenes() -> list[Scene]:
    """Every object once and every setting at least twice."""
    colours = (
        "red",
        "orange",
        "yellow",
        "green",
        "teal",
        "blue",
        "purple",
        "pink",
        "brown",
        "black",
        "white",
        "grey",
    )
    return [
        Scene((Actor(name, colours[index % 12], "large", "still"),), SETTINGS[index % 8])
        for index, name in enumerate(OBJECTS)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/sheet.png"))
    parser.add_argument("--clips", type=int, default=24)
    parser.add_argument("--frames-shown", type=int, default=5)
    parser.add_argument("--columns", type=int, default=2)
    parser.add_argument("--pixels", type=int, default=160)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--catalogue", action="store_true", help="one still of every object instead of random scenes"
    )
    options = parser.parse_args()

    rng = Random(options.seed)
    scenes = (
        catalogue_scenes()
        if options.catalogue
        else [sample_training_scene(rng) for _ in range(options.clips)]
    )
    renderer = Renderer()
    strips, captions = [], []
    for scene in scenes:
        clip = renderer.draw(plan_scenes([scene], Format(options.pixels, options.pixels, 33), rng))[0]
        strips.append(pick_frames(to_pixels(clip), options.frames_shown))
        captions.append(write_caption(scene, rng))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    draw_sheet(strips, captions, options.columns).save(options.out)


if __name__ == "__main__":
    main()
