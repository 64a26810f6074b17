"""A video model from a diffusers folder: the catalog's nearest relative, scaled to its configuration."""

import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from filmgate.catalog.video_models import Denoiser, TextEncoder, Vae, VideoModel
from filmgate.errors import UsageError

Config = Mapping[str, Any]
LARGEST_HEADER = 100 << 20
SAME_MODEL = 0.01


def read_video_folder(folder: Path, known: Mapping[str, VideoModel], as_of: str) -> VideoModel:
    """The model in `folder`; raises UsageError where no relative is known."""
    index = _read_json(folder / "model_index.json")
    denoiser_dir = next((name for name in ("transformer", "unet") if name in index), None)
    if denoiser_dir is None or "vae" not in index:
        raise UsageError(f"{folder} names no transformer or no vae in model_index.json", option="--model")
    config = _read_json(folder / denoiser_dir / "config.json")
    relative = _relative(str(index[denoiser_dir][1]), config, known)
    params = stored_params(folder / denoiser_dir)
    copies = 2 if index.get("transformer_2", [None])[0] else 1
    return replace(
        relative,
        id=folder.name,
        name=folder.name,
        denoiser=replace(_scaled(relative.denoiser, config, params), copies=copies),
        vae=_vae(_read_json(folder / "vae" / "config.json"), str(index["vae"][1]), relative, known),
        text_encoders=_encoders(folder, index, relative, as_of),
        source=f"{folder.name}/model_index.json, scaled from {relative.id}: {relative.source}",
        as_of=as_of,
    )


def _read_json(path: Path) -> Config:
    try:
        loaded = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as exc:
        raise UsageError(f"{path} cannot be read: {exc}", option="--model") from exc
    if not isinstance(loaded, dict):
        raise UsageError(f"{path} is not a configuration", option="--model")
    return loaded


def _width(config: Config) -> int:
    return int(config["num_attention_heads"]) * int(config["attention_head_dim"])


def _layers(config: Config) -> int:
    return int(config.get("num_layers", 0)) + int(config.get("num_single_layers") or 0)


def _relative(class_name: str, config: Config, known: Mapping[str, VideoModel]) -> VideoModel:
    family = [model for model in known.values() if model.denoiser.class_name == class_name]
    if not family:
        classes = ", ".join(sorted({model.denoiser.class_name for model in known.values()}))
        raise UsageError(f"{class_name} is not known to the planner; known: {classes}", option="--model")
    if "num_attention_heads" not in config or isinstance(config["num_attention_heads"], list):
        return family[0]
    size = _layers(config) * _width(config) ** 2
    channels = int(config.get("in_channels", 0))

    def distance(model: VideoModel) -> tuple[bool, float]:
        other = model.denoiser.layers * model.denoiser.width**2
        return (model.vae.latent_channels != int(config.get("out_channels") or channels), abs(other - size))

    return min(family, key=distance)


def _scaled(net: Denoiser, config: Config, params: int | None) -> Denoiser:
    """Linear work grows with layers and width squared, attention and traffic with layers and width."""
    if "attention_head_dim" not in config or isinstance(config["num_attention_heads"], list):
        return net if params is None else replace(net, params=params)
    layers, width = _layers(config) / net.layers, _width(config) / net.width
    square, line = _linear_growth(net, config, layers * width * width), layers * width
    return replace(
        net,
        params=params or round(net.params * square),
        layers=_layers(config),
        width=_width(config),
        head_dim=int(config["attention_head_dim"]),
        linear_flops=_times(net.linear_flops, square),
        attention_flops=_times(net.attention_flops, line),
        activation_bytes=_times(net.activation_bytes, width),
        traffic_bytes=_times(net.traffic_bytes, line),
    )


def _linear_growth(net: Denoiser, config: Config, by_width: float) -> float:
    """How much more linear work a token asks; a stated feed-forward width counts instead of the usual share.

    A block multiplies a token by 6 d^2 of attention and 2 d f of feed-forward weights.
    """
    if "ffn_dim" not in config:
        return by_width
    width = _width(config)
    weights = _layers(config) * (6 * width * width + 2 * width * int(config["ffn_dim"]))
    growth = weights / (net.linear_flops[1] / 2)
    return 1.0 if abs(growth - 1) < SAME_MODEL else growth


def _times(pair: tuple[float, float], factor: float) -> tuple[float, float]:
    return pair[0] * factor, pair[1] * factor


def _vae(config: Config, class_name: str, relative: VideoModel, known: Mapping[str, VideoModel]) -> Vae:
    """The catalog's VAE of that class whose telling settings match."""
    family = {model.vae.id: model.vae for model in known.values() if model.vae.class_name == class_name}
    for vae in family.values():
        if vae.match and all(config.get(key, value) == value for key, value in vae.match):
            return vae
    return next(iter(family.values()), relative.vae)


def _encoders(
    folder: Path, index: Config, relative: VideoModel, as_of: str
) -> tuple[tuple[TextEncoder, int], ...]:
    """Sizes as stored where the weights are there, else the relative's."""
    found = list(relative.text_encoders)
    names = [name for name in index if name.startswith("text_encoder")]
    for place, name in enumerate(sorted(names)[: len(found)]):
        params = stored_params(folder / name)
        if params:
            encoder, tokens = found[place]
            source = f"safetensors headers of {folder.name}/{name}"
            found[place] = (replace(encoder, params=params, source=source, as_of=as_of), tokens)
    return tuple(found)


def stored_params(folder: Path) -> int | None:
    """Parameters by the safetensors headers of a component; None where no weights are stored."""
    files = sorted(folder.glob("*.safetensors"))
    return sum(_header_params(file) for file in files) if files else None


def _header_params(path: Path) -> int:
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > LARGEST_HEADER:
                raise UsageError(f"{path}: a header of {size} bytes is not believable", option="--model")
            header = json.loads(file.read(size))
    except (OSError, struct.error, json.JSONDecodeError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path} is not a safetensors file: {exc}", option="--model") from exc
    return sum(prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
