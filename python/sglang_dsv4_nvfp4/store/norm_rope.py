"""RMS norm and RoPE of latent rows where SGLang's CUDA kernels cannot run.

In-tree this is a test reference: ``sglang/test/kernels/deepseek_v4/``.
"""

from __future__ import annotations

import torch

from sglang_dsv4_nvfp4.layout import ROPE_DIM


def norm_rope(
    kv: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    freqs_cis: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """Norm and rotate rows in FP32, then round once to BF16.

    The arithmetic of SGLang's ``fused_norm_rope.cuh``, up to the order of its sums.

    Args:
        kv: ``[n, 512]``, any float dtype.
        weight: ``[512]``.
        freqs_cis: ``[max_position, 32]`` complex64; pairs of neighbours among the
            last 64 values rotate together (GPT-J style).
        positions: ``[n]`` rows of ``freqs_cis``.

    Returns:
        ``[n, 512]`` BF16, a new tensor.
    """
    rows = kv.float()
    rows = rows * torch.rsqrt(rows.square().mean(dim=-1, keepdim=True) + eps)
    rows = rows * weight.float()
    tail = rows[:, -ROPE_DIM:].contiguous().view(-1, ROPE_DIM // 2, 2)
    rotated = torch.view_as_complex(tail) * freqs_cis[positions.long()]
    rotated = torch.view_as_real(rotated).flatten(-2)
    return torch.cat([rows[:, :-ROPE_DIM], rotated], dim=1).bfloat16()
