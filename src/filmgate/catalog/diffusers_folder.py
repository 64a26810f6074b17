"""Reads a video model from a diffusers folder: the closest catalog model, scaled to its configuration."""

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from typing import Any

from filmgate.catalog.records import parse_record, read_json
from filmgate.catalog.video_models import Defaults, Denoiser, TextEncoder, Vae, VideoModel
from filmgate.errors import UsageError

Config = Mapping[str, Any]
DEFAULTS_FILE = "filmgate.json"  # beside model_index.json; workers read it too
MAX_HEADER_BYTES = 100 << 20
MAX_COUNT = 1 << 24
COUNT_KEYS = ("num_attention_heads", "attention_head_dim", "num_layers", "ffn_dim", "in_channels")
SAME_MODEL = 0.01  # a difference in linear work below this is rounding


def read_video_folder(folder: Path, known: Mapping[str, VideoModel], as_of: str) -> VideoModel:
    """The model in `folder`. Raises UsageError when no model in `known` has the same denoiser class."""
    try:
        return _model(folder, known, as_of)
    except KeyError as exc:
        missing = f"a configuration in {folder} has no {exc.args[0]}; give a diffusers video model"
        raise UsageError(missing, option="--model") from exc
    except (IndexError, TypeError, ValueError) as exc:
        raise UsageError(f"{folder} is not a diffusers video model: {exc}", option="--model") from exc


def _model(folder: Path, known: Mapping[str, VideoModel], as_of: str) -> VideoModel:
    index = _read_json(folder / "model_index.json")
    denoiser_dir = next((name for name in ("transformer", "unet") if name in index), None)
    if denoiser_dir is None or "vae" not in index:
        raise UsageError(
            f"model_index.json in {folder} lists no transformer or no vae; give a diffusers video model",
            option="--model",
        )
    config = _read_json(folder / denoiser_dir / "config.json")
    for key in COUNT_KEYS:
        value = config.get(key, 1)
        if not isinstance(value, list) and not (isinstance(value, int) and 0 < value < MAX_COUNT):
            raise UsageError(
                f"{folder / denoiser_dir / 'config.json'}: {key} must be a positive whole number, "
                f"got {value!r}",
                option="--model",
            )
    base = _closest(str(index[denoiser_dir][1]), config, known)
    params = stored_params(folder / denoiser_dir)
    copies = 2 if index.get("transformer_2", [None])[0] else 1
    vae = _vae(folder / "vae", str(index["vae"][1]), base, known)
    return replace(
        base,
        id=folder.name,
        name=folder.name,
        denoiser=replace(_scaled(base.denoiser, config, params), copies=copies),
        vae=vae,
        size_multiple=max(base.size_multiple, vae.space_ratio * base.patch[-1]),
        defaults=_defaults(folder / DEFAULTS_FILE, base.defaults),
        text_encoders=_encoders(folder, index, base, as_of),
        source=f"{folder.name}/model_index.json, scaled from {base.id}: {base.source}",
        as_of=as_of,
    )


def _read_json(path: Path) -> Config:
    loaded = read_json(path, "--model")
    if not isinstance(loaded, dict):
        raise UsageError(f"{path} must contain a JSON object", option="--model")
    return loaded


def _width(config: Config) -> int:
    return int(config["num_attention_heads"]) * int(config["attention_head_dim"])


def _layers(config: Config) -> int:
    return int(config.get("num_layers", 0)) + int(config.get("num_single_layers") or 0)


def _closest(class_name: str, config: Config, known: Mapping[str, VideoModel]) -> VideoModel:
    """The known model of this class with the same latent channels and the closest size."""
    family = [model for model in known.values() if model.denoiser.class_name == class_name]
    if not family:
        classes = ", ".join(sorted({model.denoiser.class_name for model in known.values()}))
        raise UsageError(f"the planner does not know {class_name}; known: {classes}", option="--model")
    if "num_attention_heads" not in config or isinstance(config["num_attention_heads"], list):
        return family[0]
    size = _layers(config) * _width(config) ** 2
    channels = int(config.get("in_channels", 0))

    def distance(model: VideoModel) -> tuple[bool, float]:
        other = model.denoiser.layers * model.denoiser.width**2
        return (model.vae.latent_channels != int(config.get("out_channels") or channels), abs(other - size))

    return min(family, key=distance)


def _scaled(net: Denoiser, config: Config, params: int | None) -> Denoiser:
    """Linear work scales with layers x width squared, attention and traffic with layers x width."""
    if "attention_head_dim" not in config or isinstance(config["num_attention_heads"], list):
        return net if params is None else replace(net, params=params)
    layers, width = _layers(config) / net.layers, _width(config) / net.width
    linear, attention = _linear_factor(net, config, layers * width * width), layers * width
    return replace(
        net,
        params=params or round(net.params * linear),
        layers=_layers(config),
        width=_width(config),
        head_dim=int(config["attention_head_dim"]),
        linear_flops=_times(net.linear_flops, linear),
        attention_flops=_times(net.attention_flops, attention),
        activation_bytes=_times(net.activation_bytes, width),
        traffic_bytes=_times(net.traffic_bytes, attention),
    )


def _linear_factor(net: Denoiser, config: Config, by_width: float) -> float:
    """Linear work per token relative to `net`; uses the feed-forward width where the config states it.

    A block of width d multiplies each token by 6 d^2 attention weights and 2 d f feed-forward weights.
    """
    if "ffn_dim" not in config:
        return by_width
    width = _width(config)
    weights = _layers(config) * (6 * width * width + 2 * width * int(config["ffn_dim"]))
    factor = weights / (net.linear_flops[1] / 2)
    return 1.0 if abs(factor - 1) < SAME_MODEL else factor


def _times(pair: tuple[float, float], factor: float) -> tuple[float, float]:
    return pair[0] * factor, pair[1] * factor


def _defaults(file: Path, base: Defaults) -> Defaults:
    """The clip of the model's own `filmgate.json`, if it has one. Without guidance, a step is one pass."""
    if not file.exists():
        return base
    own = dict(_read_json(file))
    if own.pop("guidance", None) in (0, 1):
        own["forwards_per_step"] = 1
    return parse_record(Defaults, asdict(base) | own, str(file), option="--model")


def _vae(folder: Path, class_name: str, base: VideoModel, known: Mapping[str, VideoModel]) -> Vae:
    """The closest known VAE of this class, with the stored parameter count where the folder has weights.

    It is the one whose `match` settings agree, otherwise the first with the same ratio of pixels to latents.
    """
    config = _read_json(folder / "config.json")
    family = {model.vae.id: model.vae for model in known.values() if model.vae.class_name == class_name}

    def distance(vae: Vae) -> tuple[bool, bool]:
        is_same = bool(vae.match) and all(config.get(key, value) == value for key, value in vae.match.items())
        return not is_same, config.get("scale_factor_spatial", vae.space_ratio) != vae.space_ratio

    vae = min(family.values(), key=distance, default=base.vae)
    params = stored_params(folder)
    if not params:
        return vae
    counted = f"parameters from the safetensors headers of {folder.parent.name}/{folder.name}"
    return replace(vae, params=params, source=f"{vae.source}; {counted}")


def _encoders(folder: Path, index: Config, base: VideoModel, as_of: str) -> tuple[TextEncoder, ...]:
    """The base's encoders, with the stored parameter counts where the folder has weights."""
    found = list(base.text_encoders)
    names = sorted(name for name in index if name.startswith("text_encoder"))
    for i, name in enumerate(names[: len(found)]):
        params = stored_params(folder / name)
        if params:
            source = f"safetensors headers of {folder.name}/{name}"
            found[i] = replace(found[i], params=params, source=source, as_of=as_of)
    return tuple(found)


def stored_params(folder: Path) -> int | None:
    """Parameters counted from the safetensors headers in a folder, or None without weights."""
    files = sorted(folder.glob("*.safetensors"))
    return sum(_header_params(file) for file in files) if files else None


def _header_params(path: Path) -> int:
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > MAX_HEADER_BYTES:
                raise UsageError(
                    f"{path} is not a safetensors file: header of {size} bytes", option="--model"
                )
            header = json.loads(file.read(size))
    except (OSError, struct.error, json.JSONDecodeError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path} is not a safetensors file: {exc}", option="--model") from exc
    return sum(prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
