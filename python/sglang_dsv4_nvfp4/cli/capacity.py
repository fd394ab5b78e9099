"""``sglang-dsv4-nvfp4 capacity``: tokens that a memory budget holds, in both formats.

SGLang's own pool configurator counts; no GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass

from sglang_dsv4_nvfp4.cli.models import (
    PAGE_SIZE,
    ModelFacts,
    Rank,
    capacity_in_budget,
    model_facts,
    weights_bytes,
)
from sglang_dsv4_nvfp4.cli.sandbox import hooked_sglang, kv_cache_format_scope
from sglang_dsv4_nvfp4.config import KVCacheFormat

GIB = 1 << 30
# SGLang's recommended EAGLE setting for DeepSeek-V4's MTP layer.
_MTP = dict(
    speculative_algorithm="EAGLE",
    speculative_num_steps=3,
    speculative_eagle_topk=1,
    speculative_num_draft_tokens=4,
)


@dataclass(frozen=True)
class Topology:
    """How a server is spread over GPUs, in the words of SGLang's options."""

    tp_size: int
    dp_size: int
    pp_size: int
    enable_prefill_cp: bool

    @property
    def attention(self) -> str:
        """What the GPUs of one stage do in attention."""
        if self.enable_prefill_cp:
            return f"prefill CP {self.tp_size}"
        attn_tp_size = self.tp_size // self.dp_size
        return f"attention TP {attn_tp_size}, attention DP {self.dp_size}"


def run(args: argparse.Namespace) -> int:
    """Count and print; 1 where the question has no answer."""
    try:
        result = count(args)
    except ValueError as error:
        print(f"sglang-dsv4-nvfp4 capacity: {error}", file=sys.stderr)
        return 1
    print(table(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
        print(f"written to {args.json}")
    return 0


def count(args: argparse.Namespace) -> dict:
    """Both formats' tokens and bytes, and the token count that both can be pinned to.

    Raises:
        ValueError: the model, the topology or the budget does not make sense.
    """
    model = model_facts(args.model)
    if not model.compress_ratios:
        raise ValueError(
            f"--model {args.model}: its config.json has no compress_ratios, which "
            "decide what a token costs"
        )
    topology = Topology(
        args.tp_size, args.dp_size, args.pp_size, args.enable_prefill_cp
    )
    _check(topology)
    budget = _budget_bytes(args, topology)
    server_args = dict(
        page_size=PAGE_SIZE,
        max_running_requests=args.max_running_requests,
        # As SGLang resolves them: DP ranks share the chunk, and stages do not overlap.
        chunked_prefill_size=max(1, args.chunked_prefill_size // topology.dp_size),
        disable_overlap_schedule=topology.pp_size > 1,
        **_MTP if args.mtp else {},
    )
    with hooked_sglang(**server_args):
        formats = {
            kv_format.value: _capacity(model, topology, kv_format, budget)
            for kv_format in KVCacheFormat
        }
        pinned = min(one["tokens"] for one in formats.values())
    return {
        "model": model.name,
        **asdict(topology),
        "attention": topology.attention,
        "mtp": args.mtp,
        "max_running_requests": args.max_running_requests,
        "chunked_prefill_size": args.chunked_prefill_size,
        "kv_bytes_per_rank": budget,
        "formats": formats,
        "max_total_tokens": pinned,
    }


def _check(topology: Topology) -> None:
    if topology.tp_size % topology.dp_size:
        raise ValueError(
            f"--dp-size {topology.dp_size} does not divide --tp-size {topology.tp_size}"
        )
    if topology.enable_prefill_cp and topology.dp_size > 1:
        raise ValueError(
            "--enable-prefill-cp takes the whole TP group; SGLang serves it without "
            f"DP attention, not with --dp-size {topology.dp_size}"
        )


def _budget_bytes(args: argparse.Namespace, topology: Topology) -> int:
    """Bytes of one rank for KV caches: given, or what a GPU's weights leave."""
    if args.kv_gib is not None:
        if args.weights_gib is not None:
            raise ValueError("--weights-gib goes with --gpu-gib, not with --kv-gib")
        return int(args.kv_gib * GIB)
    weights = args.weights_gib
    if weights is None:
        found = weights_bytes(args.model)
        if found is None:
            raise ValueError(
                "--gpu-gib needs the weights' size: no model.safetensors.index.json "
                f"lies beside the config.json of --model {args.model}. Give a rank's "
                "--weights-gib, or the caches' --kv-gib instead"
            )
        weights = found / (topology.tp_size * topology.pp_size) / GIB
    left = args.gpu_gib * args.mem_fraction_static - weights
    if left <= 0:
        raise ValueError(
            f"{args.gpu_gib:g} GiB x {args.mem_fraction_static:g} "
            f"(--mem-fraction-static) leaves nothing beside {weights:.1f} GiB of weights"
        )
    return int(left * GIB)


def _stages(model: ModelFacts, topology: Topology) -> list[Rank]:
    from sglang.srt.distributed.utils import get_pp_indices

    num_layers = len(model.compress_ratios)
    if topology.pp_size > num_layers:
        raise ValueError(
            f"--pp-size {topology.pp_size} is more than {num_layers} layers"
        )
    return [
        Rank(
            layers=get_pp_indices(num_layers, stage, topology.pp_size),
            attn_dp_size=topology.dp_size,
        )
        for stage in range(topology.pp_size)
    ]


def _capacity(
    model: ModelFacts, topology: Topology, kv_format: KVCacheFormat, budget: int
) -> dict:
    """The smallest stage's, which SGLang holds every stage to."""
    with kv_cache_format_scope(kv_format):
        try:
            stages = [
                capacity_in_budget(model, budget, rank)
                for rank in _stages(model, topology)
            ]
        except RuntimeError as error:
            # SGLang's configurator, of a budget that the window alone is too much for.
            raise ValueError(f"{kv_format.value}: {error}") from None
    smallest = min(stages, key=lambda stage: stage.tokens)
    return {
        "tokens": smallest.tokens,
        "tokens_of_all_ranks": smallest.tokens * topology.dp_size,
        "bytes_per_token": smallest.bytes_per_full_token,
        "window_pool_bytes": smallest.window_pool_bytes,
    }


def table(result: dict) -> str:
    """What the command prints of :func:`count`'s result."""
    fp8, nvfp4 = (result["formats"][name] for name in ("fp8", "nvfp4"))

    def row(label: str, key: str, text: str, unit: float = 1) -> str:
        values = (fp8[key] / unit, nvfp4[key] / unit)
        ratio = f"{max(values) / min(values):.2f}x" if min(values) else ""
        return (
            f"{label:34}"
            + "".join(f"{format(value, text):>14}" for value in values)
            + f"{ratio:>8}"
        )

    spread = f"TP {result['tp_size']}, PP {result['pp_size']}: {result['attention']}"
    lines = [
        f"{result['model']}, {spread}" + (", MTP" if result["mtp"] else ""),
        f"{result['kv_bytes_per_rank'] / GIB:.2f} GiB a rank for KV caches, "
        f"{result['max_running_requests']} requests, prefill chunks of "
        f"{result['chunked_prefill_size']}, by SGLang's configurator",
        "",
        f"{'':34}{'fp8':>14}{'nvfp4':>14}{'ratio':>8}",
        row("bytes a token on a rank", "bytes_per_token", ",.0f"),
        row("window pool, GiB", "window_pool_bytes", ",.2f", GIB),
        row("tokens a rank", "tokens", ",.0f"),
    ]
    if result["dp_size"] > 1:
        lines.append(
            row(f"tokens, {result['dp_size']} DP ranks", "tokens_of_all_ranks", ",.0f")
        )
    return "\n".join(
        [
            *lines,
            "",
            "For a comparison at equal capacity, start both servers with",
            f"    --max-total-tokens {result['max_total_tokens']}",
        ]
    )
