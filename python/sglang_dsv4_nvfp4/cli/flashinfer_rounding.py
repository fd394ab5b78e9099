"""What FlashInfer's SM120 kernels round beyond the cache, in PyTorch.

Read in flashinfer_python 0.7.2. "sparse" multiplies in NVFP4: the queries' NoPE values, the
softmax weights and, along the candidates, the values once more
(``sparse_mla_sm120/kernels/dsv4_nvfp4/decode.cuh``). "cake" rounds the queries' NoPE values
to NVFP4, and in prefill weights and values to E4M3 (``cake_dsv4/sm_120a/*_h64.cu``). This is
an estimate of their error and no model of their bits: which candidates share a scale, and
what the weights are relative to, depends on their tiles.
"""

from __future__ import annotations

import torch

from sglang_dsv4_nvfp4.attention.decision import Decision, Phase
from sglang_dsv4_nvfp4.config import Kernel
from sglang_dsv4_nvfp4.layout import GROUP_SIZE, NOPE_DIM
from sglang_dsv4_nvfp4.quantize import (
    decode_e2m1,
    decode_e4m3,
    encode_e2m1,
    encode_e4m3,
)

_E2M1_MAX = 6.0


def attend(
    q: torch.Tensor,
    latents: torch.Tensor,
    valid: torch.Tensor,
    attn_sink: torch.Tensor | None,
    softmax_scale: float,
    decision: Decision,
) -> torch.Tensor:
    """``[tokens, heads, 512]`` FP32, rounded about as ``decision``'s kernel rounds.

    Args:
        q: ``[tokens, heads, 512]``.
        latents: ``[tokens, k, 512]``, as the cache gives them back.
        valid: ``[tokens, k]`` bool.
        attn_sink: ``[heads]``.
    """
    q, latents = q.float(), latents.float()
    q = torch.cat([round_nvfp4(q[..., :NOPE_DIM]), q[..., NOPE_DIM:]], dim=-1)
    logits = torch.einsum("thd,tkd->thk", q, latents) * softmax_scale
    logits = logits.masked_fill(~valid[:, None, :], float("-inf"))
    largest = logits.amax(dim=-1, keepdim=True)
    weights = torch.exp(logits - largest)
    total = weights.sum(dim=-1, keepdim=True)
    if attn_sink is not None:
        total = total + torch.exp(attn_sink[None, :, None] - largest)
    nope_weights, nope = weights, latents[..., :NOPE_DIM]
    if decision.kernel is Kernel.SPARSE:
        nope_weights = round_nvfp4(weights)
        nope = round_nvfp4(nope.mT).mT
    elif decision.phase is Phase.PREFILL:
        nope_weights, nope = _round_e4m3(weights), _round_e4m3(nope)
    output = torch.cat(
        [
            torch.einsum("thk,tkd->thd", nope_weights, nope),
            torch.einsum("thk,tkd->thd", weights, latents[..., NOPE_DIM:]),
        ],
        dim=-1,
    )
    return output / total


def round_nvfp4(values: torch.Tensor) -> torch.Tensor:
    """FP32 values as NVFP4 holds them, in groups of 16 along the last dimension."""
    length = values.shape[-1]
    padded = torch.nn.functional.pad(values, (0, -length % GROUP_SIZE))
    groups = padded.unflatten(-1, (-1, GROUP_SIZE))
    scale = decode_e4m3(encode_e4m3(groups.abs().amax(dim=-1) / _E2M1_MAX))[..., None]
    codes = encode_e2m1(torch.where(scale == 0, 0.0, groups / scale))
    return (decode_e2m1(codes) * scale).flatten(-2)[..., :length]


def _round_e4m3(values: torch.Tensor) -> torch.Tensor:
    return decode_e4m3(encode_e4m3(values))
