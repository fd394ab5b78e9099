"""Sparse MLA in plain PyTorch: the reference of every other backend.

Any device, slow, and bounded in memory: queries are taken a few at a time.

In-tree: ``sglang/kernels/ops/attention/dsv4_nvfp4/torch_backend.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sglang_dsv4_nvfp4.attention.inputs import (
    CandidateSet,
    SparseMLAInputs,
    within_lengths,
)
from sglang_dsv4_nvfp4.layout import LATENT_DIM
from sglang_dsv4_nvfp4.quantize import dequantize

# Gathered latent values at a time: 64 MiB in FP32, and gathering the bytes takes a
# few times as much for a moment.
_MAX_GATHERED_VALUES = 16 << 20


def torch_mla(inputs: SparseMLAInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend in FP32 over the dequantized latents.

    Returns:
        ``[tokens, heads, 512]`` BF16 output and ``[tokens, heads]`` FP32 natural-log
        LSE without the sink.
    """
    num_tokens, num_heads, _ = inputs.q.shape
    output = torch.empty_like(inputs.q)
    lse = inputs.q.new_empty((num_tokens, num_heads), dtype=torch.float32)
    candidates = inputs.candidates
    width = sum(part.indices.shape[1] for part in candidates)
    step = max(1, _MAX_GATHERED_VALUES // max(width * LATENT_DIM, 1))
    for start in range(0, num_tokens, step):
        chunk = slice(start, min(start + step, num_tokens))
        latents, valid = gather(candidates, chunk)
        output[chunk], lse[chunk] = _attend(
            inputs.q[chunk].float(),
            latents,
            valid,
            inputs.attn_sink,
            inputs.softmax_scale,
        )
    return output, lse


def gather(
    candidates: Sequence[CandidateSet], chunk: slice
) -> tuple[torch.Tensor, torch.Tensor]:
    """``[tokens, k, 512]`` FP32 latents of some tokens' candidates, of all sets one
    after the other, and ``[tokens, k]`` which of them count."""
    gathered = [_gather(part, chunk) for part in candidates]
    latents = torch.cat([part for part, _ in gathered], dim=1)
    return latents, torch.cat([part for _, part in gathered], dim=1)


def _gather(part: CandidateSet, chunk: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """``[tokens, k, 512]`` FP32 latents and ``[tokens, k]`` which of them count."""
    indices = part.indices[chunk]
    lengths = None if part.lengths is None else part.lengths[chunk]
    valid = within_lengths(indices >= 0, lengths)
    slots = torch.where(valid, indices, -1)
    return dequantize(part.cache, slots).float(), valid


def _attend(
    q: torch.Tensor,
    latents: torch.Tensor,
    valid: torch.Tensor,
    attn_sink: torch.Tensor | None,
    softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.einsum("thd,tkd->thk", q, latents) * softmax_scale
    logits = logits.masked_fill(~valid[:, None, :], float("-inf"))
    lse = torch.logsumexp(logits, dim=-1)
    denominator = lse
    if attn_sink is not None:
        denominator = torch.logaddexp(lse, attn_sink.expand_as(lse))
    # With nothing valid, -inf - (-inf) would be NaN: such rows give zeros.
    weights = torch.exp(logits - denominator[..., None])
    weights = torch.where(torch.isneginf(lse)[..., None], 0.0, weights)
    output = torch.einsum("thk,tkd->thd", weights, latents)
    return output.bfloat16(), lse
