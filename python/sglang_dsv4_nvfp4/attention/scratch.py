"""Scratch of the attention kernels: partial results and LSEs.

In-tree: ``sglang/kernels/ops/attention/dsv4_nvfp4/scratch.py``.
"""

from __future__ import annotations

import torch

from sglang_dsv4_nvfp4.arena import Arena
from sglang_dsv4_nvfp4.layout import LATENT_DIM

# A c128 layer at a context of a million tokens has 131 splits: half a GiB of partial
# results at 64 tokens and 64 heads, where a power of two would waste as much again.
arena = Arena("NVFP4 attention scratch", buckets_per_octave=4)


def take_lse(num_tokens: int, num_heads: int, device: torch.device) -> torch.Tensor:
    """``[tokens, heads]`` FP32; it holds until the next call."""
    return arena.take("lse", (num_tokens, num_heads), torch.float32, device)


def take_partials(
    rows: tuple[int, int, int], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """``[*rows, 512]`` BF16 partial outputs and ``[*rows]`` FP32 partial LSEs."""
    outputs = arena.take("mid_out", (*rows, LATENT_DIM), torch.bfloat16, device)
    return outputs, arena.take("mid_lse", rows, torch.float32, device)
