"""The renderer draws each scene with its objects, positions and motions."""

from random import Random

import pytest
import torch
from training.flipbook.animation import MOVES, FrameArea, animate_scene
from training.flipbook.clip_formats import SHARES, latent_grid
from training.flipbook.networks import PATCH
from training.flipbook.objects import DRAWINGS, LAYERS, build_atlas
from training.flipbook.renderer import Format, Renderer, Window, plan_scenes
from training.flipbook.scenes import MOTIONS, OBJECTS, SETTINGS, SIZES, Actor, Scene

SMALL = Format(64, 64, 9)


def test_every_object_has_a_drawing_and_every_motion_a_move():
    assert tuple(DRAWINGS) == OBJECTS
    assert tuple(MOVES) == MOTIONS
    assert len(OBJECTS) >= 12
    assert len(MOTIONS) >= 10
    assert len(SETTINGS) >= 6


def test_every_object_fills_most_of_its_circle():
    silhouettes = build_atlas()[:, LAYERS.index("silhouette")] < 0
    areas = silhouettes.float().mean((1, 2)) * 9 / 3.14159  # the atlas is 3 radii wide
    assert areas.min() > 0.3
    assert areas.max() < 1.1


def test_all_formats_have_the_same_number_of_tokens():
    grids = [latent_grid(size) for size in SHARES]
    assert {frames * (height // PATCH) * (width // PATCH) for frames, height, width in grids} == {576}
    assert sum(SHARES.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("motion", MOTIONS)
@pytest.mark.parametrize("size", [Format(256, 256, 33), Format(384, 192, 29), Format(192, 192, 61)])
def test_actors_stay_in_the_frame(motion, size):
    area = FrameArea.of(size.width, size.height, size.frames)
    for seed in range(20):
        scene = Scene((Actor("ball", "red", "large", motion),), "plain")
        (track,) = animate_scene(scene, area, Random(seed))
        assert abs(track.x).max() <= area.half_width + 0.02
        assert abs(track.y).max() <= area.half_height + 0.02


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_is_in_range_and_reproducible(setting):
    scene = Scene((Actor("star", "red", "medium", "spin"),), setting)
    clips = [Renderer().draw(plan_scenes([scene], SMALL, Random(4))) for _ in range(2)]
    assert clips[0].shape == (1, 3, 9, 64, 64)
    assert torch.equal(*clips)
    assert clips[0].min() >= -1
    assert clips[0].max() <= 1


def test_a_window_shows_its_part_of_the_frame():
    scenes = [Scene((Actor("car", "red", "large", "right"),), setting) for setting in ("sea", "snow", "city")]
    scene_plan = plan_scenes(scenes, SMALL, Random(5))
    corner = torch.tensor([8.0, 16.0, 24.0])
    part = Renderer().draw(scene_plan, Window(corner, corner + 4, 32, 24))
    whole = Renderer().draw(scene_plan)
    for clip, offset in enumerate((8, 16, 24)):
        expected = whole[clip, :, :, offset + 4 : offset + 28, offset : offset + 32]
        torch.testing.assert_close(part[clip], expected, atol=1e-5, rtol=0)


def test_the_nearer_actor_covers_the_farther_one():
    actors = (Actor("box", "red", "large", "still"), Actor("box", "blue", "large", "still"))
    behind, before = (
        Renderer().draw(plan_scenes([Scene(actors, "plain", relation)], SMALL, Random(6)))[0, :, 0]
        for relation in ("behind", "in front of")
    )
    assert (behind[2] - behind[0]).mean() > (before[2] - before[0]).mean()


def test_a_larger_size_draws_a_larger_object():
    areas = []
    for size in SIZES:
        scene = Scene((Actor("ball", "black", size, "still"),), "plain")
        areas.append((Renderer().draw(plan_scenes([scene], SMALL, Random(7))) < -0.6).float().mean())
    assert areas[0] * 1.5 < areas[1] * 1.2 < areas[2]
