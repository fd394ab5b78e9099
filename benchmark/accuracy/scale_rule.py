#!/usr/bin/env python3
"""Error of the scale rules amax6 and 4over6, and of FP8, on latents of three kinds.

Usage: scale_rule.py [--out DIR]

Runs on a CPU in seconds; prints a table and writes ``scale_rule.json`` to DIR
(benchmark/accuracy/results). Errors are of the NoPE values, relative in the 2-norm.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness

from sglang_dsv4_nvfp4.cli.arms import pack_fp8
from sglang_dsv4_nvfp4.config import ScaleRule
from sglang_dsv4_nvfp4.layout import LATENT_DIM, NOPE_DIM, NUM_GROUPS
from sglang_dsv4_nvfp4.quantize import dequantize_rows, quantize_rows

NUM_ROWS = 8192
SEED = 0


def latents(kind: str) -> torch.Tensor:
    """``[8192, 512]`` BF16 rows.

    gaussian: unit normal. heavy-tailed: Student-t with 5 degrees of freedom and a
    log-normal scale per channel. rms-normed: those, normed row by row with weights
    near one, as the rows are that a cache holds.
    """
    generator = torch.Generator().manual_seed(SEED)
    rows = torch.randn(NUM_ROWS, LATENT_DIM, generator=generator)
    if kind != "gaussian":
        chi = torch.randn(NUM_ROWS, LATENT_DIM, 5, generator=generator)
        rows = rows / chi.square().mean(dim=-1).sqrt()
        rows = rows * torch.exp(0.5 * torch.randn(LATENT_DIM, generator=generator))
    if kind == "rms-normed":
        rows = rows * torch.rsqrt(rows.square().mean(dim=-1, keepdim=True))
        rows = rows * (1 + 0.1 * torch.randn(LATENT_DIM, generator=generator))
    return rows.bfloat16()


def relative_error(stored: torch.Tensor, rows: torch.Tensor) -> float:
    difference = stored.double() - rows[:, :NOPE_DIM].double()
    return (difference.norm() / rows[:, :NOPE_DIM].double().norm()).item()


def fp8_nope(rows: torch.Tensor) -> torch.Tensor:
    pack = pack_fp8(rows)
    scale = torch.exp2(pack.scale_k_nope_ue8m0.float() - 127)
    tiles = pack.k_nope_fp8.float().view(len(rows), -1, 64)
    return (tiles * scale[..., None]).view(len(rows), NOPE_DIM)


def measure(kind: str) -> dict:
    rows = latents(kind)
    quantized = {rule: quantize_rows(rows, rule) for rule in ScaleRule}
    errors = {
        rule: relative_error(dequantize_rows(*stored)[:, :NOPE_DIM], rows)
        for rule, stored in quantized.items()
    }
    amax6, narrow = (
        quantized[rule][1][:, :NUM_GROUPS]
        for rule in (ScaleRule.AMAX6, ScaleRule.FOUR_OVER_SIX)
    )
    return {
        "case": kind,
        "tokens": NUM_ROWS,
        "fp8_rel_error": relative_error(fp8_nope(rows), rows),
        "amax6_rel_error": errors[ScaleRule.AMAX6],
        "4over6_rel_error": errors[ScaleRule.FOUR_OVER_SIX],
        "error_saved": 1 - errors[ScaleRule.FOUR_OVER_SIX] / errors[ScaleRule.AMAX6],
        "groups_that_take_4": (amax6 != narrow).float().mean().item(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).resolve().parent / "results"
    parser.add_argument("--out", type=Path, default=default)
    args = parser.parse_args()
    rows = [measure(kind) for kind in ("gaussian", "heavy-tailed", "rms-normed")]
    for row in rows:
        print(
            f"{row['case']:14} fp8 {row['fp8_rel_error']:.2%}  amax6 "
            f"{row['amax6_rel_error']:.2%}  4over6 {row['4over6_rel_error']:.2%}  "
            f"(saves {row['error_saved']:.1%}; {row['groups_that_take_4']:.0%} of groups)"
        )
    harness.write_result(args.out / "scale_rule.json", "cpu", {}, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
