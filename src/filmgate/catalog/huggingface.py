"""Reads a language model from its Hugging Face `config.json` and computes its parameter counts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filmgate.catalog.llms import Llm
from filmgate.catalog.records import read_json
from filmgate.errors import UsageError

Config = Mapping[str, Any]
COUNT_KEYS = ("hidden_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "vocab_size",
              "head_dim", "_rank", "num_local_experts", "num_experts", "n_routed_experts",
              "num_experts_per_tok")  # fmt: skip
MAX_COUNT = 1 << 40


def read_llm_config(path: Path, as_of: str) -> Llm:
    """The model that a config describes. Raises UsageError when a required number is missing."""
    config = read_json(path, "--model")
    if not isinstance(config, dict):
        raise UsageError(f"{path} is not the config.json of a language model", option="--model")
    _check_numbers(config, path)
    try:
        return _llm({**config, **config.get("text_config", {})}, path, as_of)
    except KeyError as exc:
        raise UsageError(
            f"{path} has no {exc.args[0]}; give the config.json of a language model", option="--model"
        ) from exc
    except (AttributeError, TypeError, ZeroDivisionError) as exc:
        raise UsageError(f"{path} is not the config.json of a language model", option="--model") from exc


def _check_numbers(config: Config, path: Path) -> None:
    """Sizes and counts are positive whole numbers. Raises UsageError naming the key."""
    nested = config.get("text_config")
    for key, value in {**config, **(nested if isinstance(nested, dict) else {})}.items():
        is_count = key.endswith(COUNT_KEYS) and value is not None
        if is_count and (not isinstance(value, int) or isinstance(value, bool) or not 0 < value < MAX_COUNT):
            raise UsageError(
                f"{path}: {key} must be a positive whole number, got {value!r}", option="--model"
            )


def _llm(config: Config, path: Path, as_of: str) -> Llm:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    layers = config["num_hidden_layers"]
    latent = config.get("kv_lora_rank")
    experts = config.get("num_local_experts") or config.get("num_experts") or config.get("n_routed_experts")
    outside = _embedding_params(config) + hidden + layers * (_attention_params(config) + 2 * hidden)
    dense, expert, shared, routed_layers = _mlp_params(config, experts)
    top = config.get("num_experts_per_tok", 0)
    fixed = outside + dense + routed_layers * (shared + (hidden * experts if experts else 0))
    windowed = sum(kind == "sliding_attention" for kind in config.get("layer_types") or ())
    return Llm(
        id=path.parent.name or path.stem,
        name=str(config.get("_name_or_path") or path.parent.name or config.get("model_type", "model")),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=_head_dim(config),
        params=fixed + routed_layers * expert * (experts or 0),
        active_params=fixed + routed_layers * expert * top,
        source=f"computed from {path.name} of {path.parent.name}",
        as_of=as_of,
        experts=experts,
        experts_per_token=top or None,
        sliding_window=config.get("sliding_window") if windowed else None,
        windowed_layers=windowed,
        latent_kv=latent + config["qk_rope_head_dim"] if latent else None,
    )


def _head_dim(config: Config) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _embedding_params(config: Config) -> int:
    tables = 1 if config.get("tie_word_embeddings") else 2
    return int(tables * config["vocab_size"] * config["hidden_size"])


def _attention_params(config: Config) -> int:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if config.get("kv_lora_rank"):
        latent, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
        nope, value = config["qk_nope_head_dim"], config["v_head_dim"]
        rank = config.get("q_lora_rank")
        queries = rank * (hidden + heads * (nope + rope)) if rank else hidden * heads * (nope + rope)
        return int(
            queries + hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden
        )
    kv_heads = config.get("num_key_value_heads") or heads
    return int(2 * hidden * (heads + kv_heads) * _head_dim(config))


def _mlp_params(config: Config, experts: int | None) -> tuple[int, int, int, int]:
    """Parameters of all dense layers, of one expert and of one layer's shared experts; routed layers."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    dense_layer = 3 * hidden * config["intermediate_size"]
    if not experts:
        return layers * dense_layer, 0, 0, 0
    expert = 3 * hidden * (config.get("moe_intermediate_size") or config["intermediate_size"])
    dense_layers = config.get("first_k_dense_replace", 0)
    shared = config.get("n_shared_experts", 0) * expert
    return dense_layers * dense_layer, expert, shared, layers - dense_layers
