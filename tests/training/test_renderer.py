"""The renderer draws what the scene says, in the place and time it says."""

from random import Random

import pytest
import torch
from training.flipbook.clip_formats import SHARES, TOKENS, count_tokens
from training.flipbook.objects import DRAWINGS, LAYERS, build_atlas
from training.flipbook.renderer import Format, Renderer, Window, plan_shot
from training.flipbook.staging import MOVES, Stage, stage_scene
from training.flipbook.world import MOTIONS, OBJECTS, SETTINGS, SIZES, Actor, Scene

SMALL = Format(64, 64, 9)


def test_every_object_has_a_drawing_and_every_motion_a_move():
    assert tuple(DRAWINGS) == OBJECTS
    assert tuple(MOVES) == MOTIONS
    assert len(OBJECTS) >= 12
    assert len(MOTIONS) >= 10
    assert len(SETTINGS) >= 6


def test_every_object_fills_a_good_part_of_its_circle():
    silhouettes = build_atlas()[:, LAYERS.index("silhouette")] < 0
    areas = silhouettes.float().mean((1, 2)) * 9 / 3.14159  # the atlas is 3 radii wide
    assert areas.min() > 0.3
    assert areas.max() < 1.1


def test_all_formats_have_the_same_number_of_tokens():
    assert {count_tokens(size) for size in SHARES} == {TOKENS}
    assert sum(SHARES.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("motion", MOTIONS)
@pytest.mark.parametrize("size", [Format(256, 256, 33), Format(384, 192, 29), Format(192, 192, 61)])
def test_actors_stay_on_stage(motion, size):
    stage = Stage.of(size.width, size.height, size.frames)
    for seed in range(20):
        scene = Scene((Actor("ball", "red", "large", motion),), "plain")
        (track,) = stage_scene(scene, stage, Random(seed))
        assert abs(track.x).max() <= stage.half_width + 0.02
        assert abs(track.y).max() <= stage.half_height + 0.02


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_is_drawn_in_range_and_again_the_same(setting):
    scene = Scene((Actor("star", "red", "medium", "spin"),), setting)
    clips = [Renderer().draw(plan_shot([scene], SMALL, Random(4))) for _ in range(2)]
    assert clips[0].shape == (1, 3, 9, 64, 64)
    assert torch.equal(*clips)
    assert clips[0].min() >= -1
    assert clips[0].max() <= 1


def test_a_window_shows_exactly_that_part_of_the_frame():
    scenes = [Scene((Actor("car", "red", "large", "right"),), setting) for setting in ("sea", "snow", "city")]
    shot = plan_shot(scenes, SMALL, Random(5))
    corner = torch.tensor([8.0, 16.0, 24.0])
    part = Renderer().draw(shot, Window(corner, corner + 4, 32, 24))
    whole = Renderer().draw(shot)
    for clip, offset in enumerate((8, 16, 24)):
        expected = whole[clip, :, :, offset + 4 : offset + 28, offset : offset + 32]
        torch.testing.assert_close(part[clip], expected, atol=1e-5, rtol=0)


def test_the_nearer_actor_hides_the_farther():
    actors = (Actor("box", "red", "large", "still"), Actor("box", "blue", "large", "still"))
    behind, before = (
        Renderer().draw(plan_shot([Scene(actors, "plain", relation)], SMALL, Random(6)))[0, :, 0]
        for relation in ("behind", "in front of")
    )
    assert (behind[2] - behind[0]).mean() > (before[2] - before[0]).mean()


def test_larger_words_draw_larger_objects():
    areas = []
    for size in SIZES:
        scene = Scene((Actor("ball", "black", size, "still"),), "plain")
        areas.append((Renderer().draw(plan_shot([scene], SMALL, Random(7))) < -0.6).float().mean())
    assert areas[0] * 1.5 < areas[1] * 1.2 < areas[2]
