"""DeepSeek-V4 models as SGLang's pool configurator sees them.

The facts come from the model's published config.json, and the token counts from
SGLang's own ``DSV4PoolConfigurator``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.model_executor.pool_configurator import DSV4PoolConfigurator

# Tokens in one of SGLang's logical pages; its CUDA backend insists on it.
PAGE_SIZE = 256


@dataclass(frozen=True)
class ModelFacts:
    """What decides the size of a latent pool.

    compress_ratios: one per layer: 0 for the window alone, 4 or 128.
    """

    name: str
    compress_ratios: tuple[int, ...]
    num_heads: int
    index_topk: int
    context_len: int
    qk_nope_head_dim: int = 448
    qk_rope_head_dim: int = 64
    index_head_dim: int = 128
    sliding_window: int = 128


# deepseek-ai/DeepSeek-V4-Flash, config.json: 43 layers and one of MTP, which is the
# draft worker's and not in this list.
V4_FLASH = ModelFacts(
    name="DeepSeek-V4-Flash",
    compress_ratios=(0, 0, *(4, 128) * 20, 4),
    num_heads=64,
    index_topk=512,
    context_len=1048576,
)
# deepseek-ai/DeepSeek-V4-Pro, config.json: 61 layers and one of MTP.
V4_PRO = ModelFacts(
    name="DeepSeek-V4-Pro",
    compress_ratios=(128, 128, *(4, 128) * 29, 4),
    num_heads=128,
    index_topk=1024,
    context_len=1048576,
)
_BUILT_IN = {"v4-flash": V4_FLASH, "v4-pro": V4_PRO}


def model_facts(model: str) -> ModelFacts:
    """The facts of a built-in model, or of a config.json (its path, or its folder's).

    Raises:
        ValueError: there is no such model or file, or the file lacks a fact.
    """
    if model in _BUILT_IN:
        return _BUILT_IN[model]
    path = _folder(model) / "config.json"
    if not path.is_file():
        path = Path(model).expanduser()
    if not path.is_file():
        raise ValueError(
            f"--model {model}: neither {' nor '.join(_BUILT_IN)}, nor a config.json"
        )
    try:
        config = json.loads(path.read_text())
        # The ratios go on for the MTP layers, which are the draft worker's.
        ratios = tuple(config.get("compress_ratios") or ())
        return ModelFacts(
            name=config.get("_name_or_path") or path.parent.name,
            compress_ratios=ratios[: config.get("num_hidden_layers")],
            num_heads=config["num_attention_heads"],
            index_topk=config["index_topk"],
            context_len=config["max_position_embeddings"],
            sliding_window=config["sliding_window"],
        )
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"{path} is no DeepSeek-V4 configuration ({type(error).__name__}: {error})"
        ) from error


def weights_bytes(model: str) -> int | None:
    """The size of a checkpoint, where its index lies beside the config.json."""
    index = _folder(model) / "model.safetensors.index.json"
    if model in _BUILT_IN or not index.is_file():
        return None
    return json.loads(index.read_text())["metadata"]["total_size"]


def _folder(model: str) -> Path:
    path = Path(model).expanduser()
    return path if path.is_dir() else path.parent


@dataclass(frozen=True)
class Capacity:
    """What SGLang's configurator makes of a memory budget.

    tokens: ``max_total_num_tokens``.
    bytes_per_full_token: what one more token costs, all layers, indexer included.
    window_pool_bytes: the sliding window's share, which does not grow with tokens.
    """

    tokens: int
    bytes_per_full_token: float
    window_pool_bytes: float


@dataclass(frozen=True)
class Rank:
    """What one rank holds of a model.

    layers: the first one and the one past the last; None for all of them.
    attn_dp_size: data-parallel attention ranks that share the requests.
    """

    layers: tuple[int, int] | None = None
    attn_dp_size: int = 1


def capacity_in_budget(
    model: ModelFacts, budget_bytes: int, rank: Rank | None = None
) -> Capacity:
    """Capacity of one rank (by default one that holds it all), in the environment's
    format.

    SGLang's context must be published: it decides the rest (the request limit, the
    prefill chunk, speculation).
    """
    config = pool_configurator(model, rank)
    sizes = config.calculate_pool_sizes(budget_bytes, PAGE_SIZE)
    return Capacity(
        tokens=sizes.max_total_num_tokens,
        bytes_per_full_token=config.bytes_per_full_token,
        window_pool_bytes=(config.swa_cap_tokens or 0) * config.bytes_per_swa_token,
    )


def pool_configurator(
    model: ModelFacts, rank: Rank | None = None
) -> DSV4PoolConfigurator:
    """SGLang's own, told what it reads of its ``KVCacheConfigurator``."""
    from sglang.srt.model_executor.pool_configurator import DSV4PoolConfigurator
    from sglang.srt.runtime_context import get_spec
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    rank = rank or Rank()
    num_layers = len(model.compress_ratios)
    start_layer, end_layer = rank.layers or (0, num_layers)
    holds_all = (start_layer, end_layer) == (0, num_layers)
    told = SimpleNamespace(
        kv_cache_dtype_str="fp8_e4m3",
        model_config=SimpleNamespace(
            qk_nope_head_dim=model.qk_nope_head_dim,
            qk_rope_head_dim=model.qk_rope_head_dim,
            index_head_dim=model.index_head_dim,
            window_size=model.sliding_window,
            context_len=model.context_len,
            compress_ratios=list(model.compress_ratios),
            hf_config=SimpleNamespace(kv_source_layer_ids=[]),
        ),
        layer_info=SimpleNamespace(start_layer=start_layer, end_layer=end_layer),
        # Only whether there is more than one stage, and a rank for the log.
        pp_size=1 if holds_all else 2,
        pp_group=SimpleNamespace(rank_in_group=0),
        page_size=PAGE_SIZE,
        sliding_window_size=model.sliding_window,
        attn_dp_size=rank.attn_dp_size,
        spec_algorithm=SpeculativeAlgorithm.from_string(
            get_spec().speculative_algorithm
        ),
    )
    return DSV4PoolConfigurator(told)
