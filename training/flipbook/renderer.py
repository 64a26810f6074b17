"""Renders scenes to clips: batches of tensors on any device, with anti-aliasing, shading and soft shadows."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from training.flipbook.animation import FPS, FrameArea, Track, animate_scene, paints_first_on_top
from training.flipbook.backdrops import PAINTERS, Canvas
from training.flipbook.objects import ATLAS_REACH, LAYERS, build_atlas
from training.flipbook.scenes import COLOURS, OBJECTS, SETTINGS, Scene

OUTLINE_PIXELS = 1.8  # if the shorter side is 256
DARK, LIGHT = 0x2E2D3A, 0xF3F1E6


@dataclass(frozen=True, slots=True)
class Format:
    """The pixels and frames of a clip."""

    width: int
    height: int
    frames: int


@dataclass(frozen=True, slots=True)
class Window:
    """The part of the frame to draw, with one corner per clip, for training on crops."""

    left: Tensor
    top: Tensor
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class ActorLayer:
    """The actors of one painting layer as tensors, with one row per clip that has an actor in it."""

    clips: Tensor  # [n] index in the batch
    objects: Tensor  # [n]
    tones: Tensor  # [n, layers, 3]
    poses: Tensor  # [n, 6, frames]: x, y, radius_x, radius_y, angle, mirror


@dataclass(frozen=True, slots=True)
class ScenePlan:
    """A batch of scenes ready to draw: all random choices are made."""

    settings: list[str]
    layers: list[ActorLayer]
    size: Format
    seed: int


def plan_scenes(scenes: Sequence[Scene], size: Format, rng: Random) -> ScenePlan:
    area = FrameArea.of(size.width, size.height, size.frames)
    rows: list[list[tuple[int, int, Tensor, np.ndarray]]] = [[], []]
    for clip, scene in enumerate(scenes):
        tracks = list(zip(scene.actors, animate_scene(scene, area, rng), strict=True))
        if paints_first_on_top(scene):
            tracks.reverse()
        for depth, (actor, track) in enumerate(tracks):
            rows[depth].append(
                (clip, OBJECTS.index(actor.object), mix_tones(actor.colour), pack_track(track))
            )
    layers = [_stack_layer(row) for row in rows if row]
    return ScenePlan([scene.setting for scene in scenes], layers, size, rng.getrandbits(31))


def _stack_layer(rows: list[tuple[int, int, Tensor, np.ndarray]]) -> ActorLayer:
    clips, objects, tones, poses = zip(*rows, strict=True)
    packed = torch.from_numpy(np.stack(poses)).float()
    return ActorLayer(torch.tensor(clips), torch.tensor(objects), torch.stack(tones), packed)


def pack_track(track: Track) -> np.ndarray:
    mirror = np.full_like(track.x, -1.0 if track.is_mirrored else 1.0)
    radius_x, radius_y = track.radius * track.stretch_x, track.radius * track.stretch_y
    return np.stack([track.x, track.y, radius_x, radius_y, track.angle, mirror])


def unpack_rgb(code: int) -> Tensor:
    return torch.tensor([(code >> shift & 255) / 255 for shift in (16, 8, 0)])


def mix_tones(colour: str) -> Tensor:
    """The colours of the layers: outline, body, tint, shade, dark parts, light parts."""
    body = unpack_rgb(COLOURS[colour])
    is_dark = bool(body.mean() < 0.2)
    outline = torch.lerp(body, torch.tensor([0.62, 0.62, 0.68]), 0.7) if is_dark else body * 0.42
    tint = torch.lerp(body, torch.ones(3), 0.22 if is_dark else 0.34)
    return torch.stack([outline, body, tint, body * 0.72, unpack_rgb(DARK), unpack_rgb(LIGHT)])


class Renderer:
    """Draws scene plans on one device."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.atlas = build_atlas().to(self.device)

    @torch.no_grad()
    def draw(self, scene_plan: ScenePlan, window: Window | None = None) -> Tensor:
        """The clips as float32 [clips, 3, frames, height, width] in -1 .. 1."""
        window = window or self._whole_frame(scene_plan)
        x, y = self._coordinates(scene_plan.size, window)
        picture = self._paint_backdrops(scene_plan, x, y)
        for actor_layer in scene_plan.layers:
            self._paint_layer(picture, actor_layer, x, y, min(scene_plan.size.width, scene_plan.size.height))
        return picture.mul_(2).sub_(1)

    def _whole_frame(self, scene_plan: ScenePlan) -> Window:
        corner = torch.zeros(len(scene_plan.settings))
        return Window(corner, corner, scene_plan.size.width, scene_plan.size.height)

    def _coordinates(self, size: Format, window: Window) -> tuple[Tensor, Tensor]:
        shorter = min(size.width, size.height)
        columns = window.left.view(-1, 1, 1, 1) + torch.arange(window.width).view(1, 1, 1, -1) + 0.5
        rows = window.top.view(-1, 1, 1, 1) + torch.arange(window.height).view(1, 1, -1, 1) + 0.5
        x = (columns - size.width / 2) / shorter
        y = (rows - size.height / 2) / shorter
        return x.to(self.device), y.to(self.device)

    def _paint_backdrops(self, scene_plan: ScenePlan, x: Tensor, y: Tensor) -> Tensor:
        extent = (len(scene_plan.settings), 3, scene_plan.size.frames, y.shape[2], x.shape[3])
        picture = torch.empty(extent, device=self.device)
        seconds = (torch.arange(scene_plan.size.frames, device=self.device) / FPS).view(1, -1, 1, 1)
        half_height = scene_plan.size.height / min(scene_plan.size.width, scene_plan.size.height) / 2
        for number, setting in enumerate(SETTINGS):
            clips = [clip for clip, name in enumerate(scene_plan.settings) if name == setting]
            if not clips:
                continue
            generator = torch.Generator().manual_seed(scene_plan.seed + number)
            indices = torch.tensor(clips, device=self.device)
            canvas = Canvas(len(clips), x[indices], y[indices], half_height, seconds, generator)
            picture[indices] = PAINTERS[setting](canvas).expand(-1, -1, scene_plan.size.frames, -1, -1)
        return picture

    def _paint_layer(
        self, picture: Tensor, actor_layer: ActorLayer, x: Tensor, y: Tensor, shorter: int
    ) -> None:
        clips = actor_layer.clips.to(self.device)
        has_every_clip = len(clips) == len(picture)
        target = picture if has_every_clip else picture[clips]
        pose = actor_layer.poses.to(self.device).view(len(clips), 6, -1, 1, 1).unbind(1)
        x, y = x[clips], y[clips]
        fields = self.atlas[actor_layer.objects.to(self.device)]
        pixels = shorter * torch.sqrt(pose[2] * pose[3])  # pixels per object radius

        shadow = self._sample(fields[:, :1], x - 0.16 * pose[2], y - 0.24 * pose[3], pose)[:, 0]
        target.lerp_(
            torch.zeros_like(target[:1, :1]), (0.5 - shadow / 0.5).clamp_(0, 1).mul_(0.2).unsqueeze(1)
        )

        distance = self._sample(fields, x, y, pose)
        bevel = distance[:, 0].neg().mul_(2.6).clamp_(0, 1)
        outline = OUTLINE_PIXELS * shorter / 256
        cover = distance.mul_(-pixels.unsqueeze(1)).add_(0.5)
        cover[:, 0] += outline
        cover.clamp_(0, 1)

        tones = actor_layer.tones.to(self.device).view(len(clips), len(LAYERS), 3, 1, 1, 1)
        light = self._shade(bevel, x, y, pose)
        for layer in range(len(LAYERS)):
            tone = tones[:, layer] * light.unsqueeze(1) if layer else tones[:, layer]
            target.lerp_(tone.clamp(0, 1).expand_as(target), cover[:, layer].unsqueeze(1))
        target.lerp_(
            torch.ones_like(target[:1, :1]), self._highlight(cover[:, 0] * bevel, x, y, pose).unsqueeze(1)
        )
        if not has_every_clip:
            picture[clips] = target

    def _sample(self, fields: Tensor, x: Tensor, y: Tensor, pose: tuple[Tensor, ...]) -> Tensor:
        """The fields in each frame's pose: [n, layers, frames, height, width]."""
        centre_x, centre_y, radius_x, radius_y, angle, mirror = pose
        u, v = (x - centre_x) / radius_x, (y - centre_y) / radius_y
        cos, sin = torch.cos(angle), torch.sin(angle)
        across = (u * cos + v * sin) * (mirror / ATLAS_REACH)
        down = (v * cos - u * sin) / ATLAS_REACH
        grid = torch.stack([across, down], dim=-1)
        clips, frames, height, width, _ = grid.shape
        # Frames are stacked vertically, so each clip's distance fields are read in place without a copy.
        stacked = F.grid_sample(
            fields, grid.view(clips, frames * height, width, 2), padding_mode="border", align_corners=False
        )
        return stacked.view(clips, -1, frames, height, width)

    @staticmethod
    def _shade(bevel: Tensor, x: Tensor, y: Tensor, pose: tuple[Tensor, ...]) -> Tensor:
        """Light from the upper left, with darker edges on the other side."""
        slope = (-(y - pose[1]) / pose[3] - 0.5 * (x - pose[0]) / pose[2]).clamp_(-1.2, 1.2)
        return bevel.mul(0.14).add_(0.88).add_(slope, alpha=0.09)

    @staticmethod
    def _highlight(inside: Tensor, x: Tensor, y: Tensor, pose: tuple[Tensor, ...]) -> Tensor:
        u, v = (x - pose[0]) / pose[2] + 0.34, (y - pose[1]) / pose[3] + 0.42
        return inside.mul(0.3).mul_(torch.exp((u * u + v * v) * -9))
