#!/usr/bin/env python3
"""Error of attention's output over latents in FP8, NVFP4, and NVFP4 with 4over6.

Usage: attention_error.py [--out DIR]

Runs on a CPU in a minute; prints a table and writes ``attention_error.json`` to DIR
(benchmark/accuracy/results). The reference attends in FP64 over the BF16 rows. "sparse" and
"cake" are NVFP4 (amax6) with what FlashInfer's kernels round on top of it, estimated.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness
from accuracy.scale_rule import fp8_nope, latents

from sglang_dsv4_nvfp4.attention.decision import Decision, Phase
from sglang_dsv4_nvfp4.cli import flashinfer_rounding
from sglang_dsv4_nvfp4.config import Kernel, ScaleRule
from sglang_dsv4_nvfp4.layout import LATENT_DIM, NOPE_DIM
from sglang_dsv4_nvfp4.quantize import dequantize_rows, quantize_rows

QUERIES = 64
HEADS = 8
CANDIDATES = 128 + 512
# Standard deviations of the logits: attention that averages, and that picks.
SHARPNESS = {"flat": 1.0, "peaked": 4.0}
SEED = 0
# What FlashInfer's SM120 kernels round beyond the cache, over amax6's.
KERNELS = {
    "sparse": Decision(Kernel.SPARSE, Phase.PREFILL),
    "cake": Decision(Kernel.CAKE, Phase.PREFILL),
}


def stored(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """``[n, 512]`` FP64 rows as each format gives them back."""
    fp8 = torch.cat([fp8_nope(rows), rows[:, NOPE_DIM:].float()], dim=1)
    formats = {"fp8": fp8}
    for rule in ScaleRule:
        formats[rule.value] = dequantize_rows(*quantize_rows(rows, rule))
    return {name: values.double() for name, values in formats.items()}


def measure(kind: str, sharpness: str) -> dict:
    """Relative error in the 2-norm, and cosine similarity, of all outputs together."""
    rows = latents(kind)
    generator = torch.Generator().manual_seed(SEED)
    slots = torch.stack(
        [
            torch.randperm(len(rows), generator=generator)[:CANDIDATES]
            for _ in range(QUERIES)
        ]
    )
    q = torch.randn(
        QUERIES, HEADS, LATENT_DIM, dtype=torch.float64, generator=generator
    )
    exact = rows.double()
    logits = torch.einsum("thd,tkd->thk", q, exact[slots])
    # As sharp as asked, whatever the scale of the latents is.
    q *= SHARPNESS[sharpness] / logits.std()
    expected = attend(q, exact[slots])
    row = {"case": kind, "tokens": QUERIES, "logits": sharpness}
    formats = stored(rows)
    outputs = {name: attend(q, values[slots]) for name, values in formats.items()}
    every = torch.ones(slots.shape, dtype=torch.bool)
    for name, decision in KERNELS.items():
        latents_read = formats[ScaleRule.AMAX6.value][slots]
        outputs[name] = flashinfer_rounding.attend(
            q, latents_read, every, None, 1.0, decision
        ).double()
    for name, output in outputs.items():
        row[f"{name}_rel_error"] = ((output - expected).norm() / expected.norm()).item()
        row[f"{name}_cosine"] = torch.nn.functional.cosine_similarity(
            output.flatten(), expected.flatten(), dim=0
        ).item()
    return row


def attend(q: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """``[t, h, d]`` queries over ``[t, k, d]`` rows, which are keys and values."""
    weights = torch.einsum("thd,tkd->thk", q, rows).softmax(dim=-1)
    return torch.einsum("thk,tkd->thd", weights, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    results = Path(__file__).resolve().parent / "results"
    parser.add_argument("--out", type=Path, default=results)
    args = parser.parse_args()
    rows = [
        measure(kind, sharpness)
        for kind in ("gaussian", "heavy-tailed", "rms-normed")
        for sharpness in SHARPNESS
    ]
    for row in rows:
        print(
            f"{row['case']:14}{row['logits']:8}"
            + "".join(
                f"  {name} {row[f'{name}_rel_error']:.2%}"
                for name in ("fp8", "amax6", "4over6", *KERNELS)
            )
        )
    harness.write_result(args.out / "attention_error.json", "cpu", {}, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
