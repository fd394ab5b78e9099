"""``sglang-dsv4-nvfp4 demo``: one workload in FP8 and in NVFP4, side by side.

Real pools of SGLang, its entry points, its attention function; no model and no GPU
needed. Every figure it prints is computed in the run.
"""

from __future__ import annotations

import argparse
import datetime
import json

from sglang_dsv4_nvfp4.cli.sandbox import hooked_sglang, kv_cache_format_scope
from sglang_dsv4_nvfp4.config import KVCacheFormat, kernel

PROMPT_LENS = (700, 260, 131)
DECODE_STEPS = 4
CHUNK_SIZE = 256
COMPRESS_RATIOS = (0, 4, 128)
NUM_HEADS = 64
BUDGET_BYTES = 32 << 30
# SGLang's default for DeepSeek-V4 is 256, here over four data-parallel ranks.
MAX_RUNNING_REQUESTS = 64
_LAYER_NAMES = {0: "window only", 4: "window + c4", 128: "window + c128"}


def run(args: argparse.Namespace) -> int:
    """Run, print the table, and write ``--json``'s file."""
    with hooked_sglang(
        max_running_requests=MAX_RUNNING_REQUESTS, chunked_prefill_size=8192
    ) as device:
        result = compare(device)
    print(table(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
        print(f"written to {args.json}")
    return 0


def compare(device: str) -> dict:
    """Both formats over the same workload; see the README for the keys."""
    from sglang_dsv4_nvfp4.cli.arms import FP8Arm, NVFP4Arm
    from sglang_dsv4_nvfp4.cli.models import V4_FLASH, capacity_in_budget
    from sglang_dsv4_nvfp4.cli.workload import Workload
    from sglang_dsv4_nvfp4.machine import describe_device, versions

    workload = Workload(
        prompt_lens=PROMPT_LENS,
        decode_steps=DECODE_STEPS,
        chunk_size=CHUNK_SIZE,
        compress_ratios=COMPRESS_RATIOS,
        device=device,
    )
    arms = {
        KVCacheFormat.FP8: FP8Arm(workload),
        KVCacheFormat.NVFP4: NVFP4Arm(workload),
    }
    formats = {}
    for kv_format, arm in arms.items():
        with kv_cache_format_scope(kv_format):
            capacity = capacity_in_budget(V4_FLASH, BUDGET_BYTES)
        formats[kv_format.value] = {
            "bytes_per_token": arm.pool.get_swa_key_bytes_per_token(),
            "tokens_in_budget": capacity.tokens,
            "bytes_per_full_token": capacity.bytes_per_full_token,
            "window_pool_bytes": capacity.window_pool_bytes,
        }
    return {
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
        "device": "cpu" if device == "cpu" else describe_device(),
        "backend": kernel().value,
        "model": V4_FLASH.name,
        "budget_bytes": BUDGET_BYTES,
        "max_running_requests": MAX_RUNNING_REQUESTS,
        "formats": formats,
        "capacity_ratio": formats["nvfp4"]["tokens_in_budget"]
        / formats["fp8"]["tokens_in_budget"],
        "layers": [
            _compare_layer(layer, workload, arms)
            for layer in range(len(COMPRESS_RATIOS))
        ],
    }


def _compare_layer(layer: int, workload, arms: dict) -> dict:
    """Write everything, attending after the last chunks and at each decode step."""
    import torch

    from sglang_dsv4_nvfp4.cli.reference import BF16Reference

    reference = BF16Reference(layer, workload)
    sink = torch.linspace(-2, 2, NUM_HEADS, device=workload.device)
    expected, actual = [], {kv_format: [] for kv_format in arms}
    for step in workload.steps():
        reference.write(step)
        for arm in arms.values():
            arm.write(layer, step)
        # Chunks in the middle of a prompt say no more than its last ones.
        if step.position.shape[0] == CHUNK_SIZE and not step.is_decode:
            continue
        q = workload.queries(step, NUM_HEADS)
        window = workload.window_candidates(step)
        ratio = workload.compress_ratios[layer]
        compressed = workload.compressed_candidates(layer, step) if ratio else None
        expected.append(reference.attend(q, window, compressed, sink))
        for kv_format, arm in arms.items():
            actual[kv_format].append(arm.attend(layer, q, window, compressed, sink))
    row = {"compress_ratio": workload.compress_ratios[layer]}
    for kv_format, outputs in actual.items():
        cosine, error = _agreement(torch.cat(outputs), torch.cat(expected))
        row[f"{kv_format.value}_cosine"] = cosine
        row[f"{kv_format.value}_rel_error"] = error
    return row


def _agreement(actual, expected) -> tuple[float, float]:
    """Cosine similarity and relative error, in FP64 over all outputs."""
    import torch

    actual, expected = actual.double().flatten(), expected.double().flatten()
    cosine = torch.nn.functional.cosine_similarity(actual, expected, dim=0)
    return cosine.item(), ((actual - expected).norm() / expected.norm()).item()


def table(result: dict) -> str:
    """What the command prints of :func:`compare`'s result."""

    def row(label: str, key: str, text: str, unit: float = 1) -> str:
        fp8, nvfp4 = (result["formats"][name][key] / unit for name in ("fp8", "nvfp4"))
        larger, smaller = max(fp8, nvfp4), min(fp8, nvfp4)
        return (
            f"{label:30}{format(fp8, text):>12}{format(nvfp4, text):>12}"
            f"{larger / smaller:>8.2f}x"
        )

    lines = [
        "DeepSeek-V4 KV cache, FP8 against NVFP4, on SGLang's own pools",
        f"device: {result['device']}   attention backend: {result['backend']}",
        "",
        f"{'':30}{'fp8':>12}{'nvfp4':>12}{'ratio':>9}",
        row("latent, bytes per token", "bytes_per_token", ".0f"),
        "",
        f"{result['model']} with {result['budget_bytes'] >> 30} GiB on one rank, "
        f"{result['max_running_requests']} requests, by SGLang's configurator:",
        row("all layers, bytes per token", "bytes_per_full_token", ",.0f"),
        row("window pool, GiB", "window_pool_bytes", ".2f", 1 << 30),
        row("tokens", "tokens_in_budget", ",.0f"),
        "(The indexer's keys and the compressors' state cost the same in both; the",
        "window pool is a fixed cost, so a small budget gains more tokens than that.)",
        "",
        "Attention output against BF16 latents: prompts of "
        f"{', '.join(map(str, PROMPT_LENS))} tokens",
        f"in chunks of {CHUNK_SIZE}, then {DECODE_STEPS} decode steps, {NUM_HEADS} "
        "heads, random heavy-tailed latents:",
        f"{'layer':18}{'fp8 cosine':>12}{'nvfp4 cosine':>14}"
        f"{'fp8 error':>12}{'nvfp4 error':>13}",
    ]
    for layer in result["layers"]:
        lines.append(
            f"{_LAYER_NAMES[layer['compress_ratio']]:18}{layer['fp8_cosine']:>12.6f}"
            f"{layer['nvfp4_cosine']:>14.6f}{layer['fp8_rel_error']:>12.2%}"
            f"{layer['nvfp4_rel_error']:>13.2%}"
        )
    return "\n".join(lines)
