"""Sparse MLA by FlashInfer's SM120 kernels, in memory that is ours.

FlashInfer has two families. "sparse" are hand-written: split-K decode and streaming
prefill, for main top-k 128 and 512 and a few page sizes. "cake" take any page size and
any top-k, and have a prefill kernel per head count. FlashInfer's wrapper class would
call both, but it grows scratch in place and keeps one LSE buffer per distinct shape for
ever; a captured graph needs memory that stays, and a server needs memory that is bounded.
So scratch, LSE and decisions are ours.

Both families count the sink in their LSE, unlike the other backends.

Tests hold it to the installed FlashInfer's signatures and compiled host code; the
kernels themselves need an SM120.

In-tree: ``sglang/kernels/ops/attention/dsv4_nvfp4/flashinfer_backend.py``.
"""

from __future__ import annotations

import math

import torch

from sglang_dsv4_nvfp4.attention import scratch
from sglang_dsv4_nvfp4.attention.decision import (
    DECODE_MAX_TOKENS,
    Decision,
    Phase,
)
from sglang_dsv4_nvfp4.attention.inputs import AttentionShape, SparseMLAInputs
from sglang_dsv4_nvfp4.config import Kernel
from sglang_dsv4_nvfp4.machine import sm_count

# Candidates that one chunk of either family covers.
CHUNK_WIDTH = 64
# FlashInfer's LSE is base 2.
_LSE_SCALE = math.log(2)
# Partial results of a "cake" split-K batch, 1 KiB a row: a GiB of scratch that SGLang's
# memory budget does not know of. (Its 32-bit offsets would end at four times as many.)
_CAKE_MAX_PARTIAL_ROWS = 1 << 20
# FlashInfer's own default for how many parts a "cake" decode splits into.
_CAKE_DEFAULT_SPLITS = 16
# RTX PRO 6000 Blackwell's, for asking "cake" what it would do where there is no GPU.
SM_COUNT_WITHOUT_DEVICE = 188


def sparse_mla(
    inputs: SparseMLAInputs, decision: Decision
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the "sparse" kernel that ``decision`` names.

    Returns:
        ``[tokens, heads, 512]`` BF16 output and ``[tokens, heads]`` FP32 natural-log
        LSE, which is scratch: it holds until the next call.
    """
    from flashinfer.mla._sparse_mla_sm120._dsv4_nvfp4 import (
        _sparse_mla_nvfp4_sm120_paged_attention,
    )

    q, output, lse = _query_and_results(inputs)
    mid_out = mid_lse = None
    if decision.phase is Phase.DECODE:
        rows = (q.shape[0], q.shape[1], num_chunks(inputs.shape))
        mid_out, mid_lse = scratch.take_partials(rows, q.device)
    _sparse_mla_nvfp4_sm120_paged_attention(
        *_required(inputs, q, output, lse),
        mid_out=mid_out,
        mid_lse=mid_lse,
        use_prefill=decision.phase is Phase.PREFILL,
        chunks_per_block_override=decision.chunks,
        lse_scale=_LSE_SCALE,
        **_optional(inputs),
    )
    return output, lse


def cake_mla(
    inputs: SparseMLAInputs, decision: Decision
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the "cake" kernel that ``decision`` names; results as :func:`sparse_mla`."""
    from flashinfer.mla import (
        cake_sparse_mla_sm120_dsv4_nvfp4_decode,
        cake_sparse_mla_sm120_dsv4_nvfp4_prefill,
    )

    q, output, lse = _query_and_results(inputs)
    arguments = _required(inputs, q, output, lse)
    common = dict(
        lse_scale=_LSE_SCALE, head_tiles=decision.head_tiles, **_optional(inputs)
    )
    if decision.phase is Phase.PREFILL:
        cake_sparse_mla_sm120_dsv4_nvfp4_prefill(*arguments, **common)
        return output, lse
    mid_out = mid_lse = None
    if decision.chunks > 1:
        rows = (q.shape[0], q.shape[1], decision.chunks)
        mid_out, mid_lse = scratch.take_partials(rows, q.device)
    cake_sparse_mla_sm120_dsv4_nvfp4_decode(
        *arguments,
        mid_out=mid_out,
        mid_lse=mid_lse,
        num_splits=decision.chunks,
        **common,
    )
    return output, lse


def sparse_decisions(shape: AttentionShape, device: torch.device) -> list[Decision]:
    """The "sparse" kernel that FlashInfer's planner gives the shape, if any serves it."""
    from flashinfer.mla._sparse_mla_sm120._dsv4_nvfp4_policy import (
        NVFP4KernelVariant,
        plan_nvfp4_sparse_mla_sm120,
    )

    planned = plan_nvfp4_sparse_mla_sm120(
        num_tokens=shape.num_tokens,
        num_heads=shape.num_heads,
        topk=shape.topk,
        primary_page_size=shape.page_size,
        device=device,
        extra_topk=shape.extra_topk,
        extra_page_size=shape.extra_page_size,
        has_topk_length=shape.has_topk_length,
        has_extra_topk_length=shape.has_extra_topk_length,
        has_attn_sink=shape.has_attn_sink,
    )
    if planned is None:
        return []
    if planned.variant is NVFP4KernelVariant.PREFILL_STREAMING:
        decisions = [Decision(Kernel.SPARSE, Phase.PREFILL, planned.cpb)]
    else:
        decisions = [Decision(Kernel.SPARSE, Phase.DECODE, planned.cpb)]
        # At the boundary the streaming kernel may serve as well.
        if shape.num_tokens == DECODE_MAX_TOKENS:
            decisions.append(Decision(Kernel.SPARSE, Phase.PREFILL, 0))
    return decisions


def cake_decisions(shape: AttentionShape, device: torch.device) -> list[Decision]:
    """The "cake" kernels that serve the shape, FlashInfer's own choice first."""
    from flashinfer import mla

    widths = dict(topk=shape.topk, extra_topk=shape.extra_topk)
    asked = dict(
        num_tokens=shape.num_tokens,
        num_heads=shape.num_heads,
        num_sms=sm_count(device) or SM_COUNT_WITHOUT_DEVICE,
        **widths,
    )
    decisions = []
    if (
        mla.cake_sparse_mla_sm120_dsv4_nvfp4_prefill_head_tiles(shape.num_heads)
        and num_chunks(shape) <= _cake_max_chunks()
    ):
        tiles = mla.cake_sparse_mla_sm120_dsv4_nvfp4_plan_prefill(**asked)
        decisions.append(Decision(Kernel.CAKE, Phase.PREFILL, head_tiles=tiles))
    if shape.num_heads in mla.cake_sparse_mla_sm120_dsv4_nvfp4_supported_heads():
        tiles = mla.cake_sparse_mla_sm120_dsv4_nvfp4_plan_head_tiles(**asked)
        splits = _cake_splits(asked, tiles, num_chunks(shape))
        rows = shape.num_tokens * shape.num_heads * splits
        if rows <= _CAKE_MAX_PARTIAL_ROWS:
            decisions.append(Decision(Kernel.CAKE, Phase.DECODE, splits, tiles))
    preferred = mla.cake_sparse_mla_sm120_dsv4_nvfp4_select_kernel(**asked)
    return sorted(decisions, key=lambda decision: decision.phase != preferred)


def num_chunks(shape: AttentionShape) -> int:
    """Chunks of 64 candidates; the two caches do not share one."""
    return math.ceil(shape.topk / CHUNK_WIDTH) + math.ceil(
        shape.extra_topk / CHUNK_WIDTH
    )


def _cake_max_chunks() -> int:
    """Candidate chunks that one block of a "cake" kernel holds."""
    from flashinfer import mla

    return mla.cake_sparse_mla_sm120_dsv4_nvfp4_format_info()["prefill_max_chunks"]


def _cake_splits(asked: dict, head_tiles: int, chunks: int) -> int:
    from flashinfer import mla

    # FlashInfer refuses what its default cannot cover; more splits can.
    max_splits = max(_CAKE_DEFAULT_SPLITS, math.ceil(chunks / _cake_max_chunks()))
    splits, _ = mla.cake_sparse_mla_sm120_dsv4_nvfp4_plan_splits(
        **asked, max_splits=max_splits, head_tiles=head_tiles
    )
    return splits


def _query_and_results(
    inputs: SparseMLAInputs,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q = inputs.q.contiguous()
    return q, torch.empty_like(q), scratch.take_lse(q.shape[0], q.shape[1], q.device)


def _required(
    inputs: SparseMLAInputs, q: torch.Tensor, output: torch.Tensor, lse: torch.Tensor
) -> tuple:
    """What both families take by position."""
    indices = inputs.main.indices.contiguous()
    return q, inputs.main.cache, indices, output, lse, inputs.softmax_scale


def _optional(inputs: SparseMLAInputs) -> dict[str, torch.Tensor | None]:
    extra = inputs.extra
    return dict(
        topk_length=_contiguous(inputs.main.lengths),
        attn_sink=_contiguous(inputs.attn_sink),
        extra_kv_cache=extra.cache if extra else None,
        extra_indices=extra.indices.contiguous() if extra else None,
        extra_topk_length=_contiguous(extra.lengths) if extra else None,
    )


def _contiguous(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.contiguous()
