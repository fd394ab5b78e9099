"""Sparse MLA by FlashInfer's SM120 kernels, through their allocation-free op.

FlashInfer's wrapper class would do all of this, but it grows scratch in place and
keeps one LSE buffer per distinct shape for ever; a captured graph needs memory that
stays, and a server needs memory that is bounded. So scratch, LSE and decisions are
ours. In-tree: part of ``sglang/kernels/ops/attention/flash_mla_sm120_nvfp4.py``.

Nobody on this project has an SM120 card: what holds this module are the contract
tests against the installed FlashInfer, and its users.
"""

from __future__ import annotations

import math

import torch

from sglang_dsv4_nvfp4.arena import Arena
from sglang_dsv4_nvfp4.attention.inputs import AttentionShape, SparseMLAInputs
from sglang_dsv4_nvfp4.attention.planner import Planner
from sglang_dsv4_nvfp4.layout import LATENT_DIM

# Candidates that one split of the decode kernel covers.
_SPLIT_WIDTH = 64
# FlashInfer's LSE is base 2.
_LSE_SCALE = math.log(2)

planner = Planner()
# A c128 layer at a context of a million tokens has 131 splits: half a GiB of partial
# results at 64 tokens and 64 heads, where a power of two would waste as much again.
scratch = Arena("NVFP4 attention scratch", buckets_per_octave=4)


def sparse_mla(inputs: SparseMLAInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Plan and launch.

    Returns:
        ``[tokens, heads, 512]`` BF16 output and ``[tokens, heads]`` FP32 natural-log
        LSE. The LSE is scratch: it holds until the next call.

    Raises:
        ValueError: no kernel serves the shape.
        RuntimeError: the shape was not warmed up before CUDA graph capture.
    """
    from flashinfer.mla._sparse_mla_sm120._dsv4_nvfp4 import (
        _sparse_mla_nvfp4_sm120_paged_attention,
    )

    q = inputs.q.contiguous()
    decision = planner.plan(inputs.shape, q.device)
    num_tokens, num_heads, _ = q.shape
    lse = scratch.take("lse", (num_tokens, num_heads), torch.float32, q.device)
    mid_out = mid_lse = None
    if not decision.use_prefill:
        mid_out, mid_lse = _split_scratch(inputs.shape, q.device)
    output = torch.empty_like(q)
    extra = inputs.extra
    _sparse_mla_nvfp4_sm120_paged_attention(
        q,
        inputs.main.cache,
        inputs.main.indices.contiguous(),
        output,
        lse,
        inputs.softmax_scale,
        topk_length=_contiguous(inputs.main.lengths),
        attn_sink=_contiguous(inputs.attn_sink),
        extra_kv_cache=extra.cache if extra else None,
        extra_indices=extra.indices.contiguous() if extra else None,
        extra_topk_length=_contiguous(extra.lengths) if extra else None,
        mid_out=mid_out,
        mid_lse=mid_lse,
        use_prefill=decision.use_prefill,
        chunks_per_block_override=decision.chunks_per_block,
        lse_scale=_LSE_SCALE,
    )
    return output, lse


def num_splits(shape: AttentionShape) -> int:
    """Partial results a query and head has in the decode kernel."""
    return math.ceil(shape.topk / _SPLIT_WIDTH) + math.ceil(
        shape.extra_topk / _SPLIT_WIDTH
    )


def _split_scratch(
    shape: AttentionShape, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = (shape.num_tokens, shape.num_heads, num_splits(shape))
    mid_out = scratch.take("mid_out", (*rows, LATENT_DIM), torch.bfloat16, device)
    mid_lse = scratch.take("mid_lse", rows, torch.float32, device)
    return mid_out, mid_lse


def _contiguous(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.contiguous()
