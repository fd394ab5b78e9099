"""Sparse MLA by Triton kernels, on any NVIDIA GPU.

On Hopper the warp-specialized kernel, elsewhere the portable one; on a machine without a
GPU the portable one runs in Triton's interpreter.

In-tree: ``sglang/kernels/ops/attention/dsv4_nvfp4/triton_backend.py``.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
from triton import knobs

from sglang_dsv4_nvfp4.attention import scratch
from sglang_dsv4_nvfp4.attention.decision import Decision, Phase
from sglang_dsv4_nvfp4.attention.inputs import AttentionShape, SparseMLAInputs
from sglang_dsv4_nvfp4.config import Kernel
from sglang_dsv4_nvfp4.kernels import nvfp4_mla
from sglang_dsv4_nvfp4.machine import sm_count

# Partial results that the merge weighs; past this many, merging costs more than
# splitting saves.
MAX_SPLITS = 32
# Measured with the Hopper kernel on an H200: three blocks of 64 candidates took longer in
# parts of two and one than undivided. For the portable kernel it is a guess.
_MIN_BLOCKS_SAVED = 2
# CUDA's limit on the grid's second dimension.
MAX_TOKENS = 65535
_MERGE_WARPS = 4
_HOPPER = (9, 0)


class Launch(NamedTuple):
    """How a kernel is launched: heads and candidates of a block, warps."""

    block_heads: int
    block_candidates: int
    num_warps: int


# Measured on an H200 with the kernel's instructions for sm_80 and later: the most heads
# a block that fit an SM120's 99 KB of shared
# memory and its registers. Tensor cores want 16 heads at least.
_LAUNCH_FEW_HEADS = Launch(block_heads=16, block_candidates=32, num_warps=4)
_LAUNCH_MANY_HEADS = Launch(block_heads=32, block_candidates=32, num_warps=4)


def triton_mla(
    inputs: SparseMLAInputs, decision: Decision
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the kernel, in ``decision.chunks`` parts.

    Returns:
        ``[tokens, heads, 512]`` BF16 output and ``[tokens, heads]`` FP32 natural-log
        LSE without the sink, which is scratch: it holds until the next call.
    """
    return run(inputs, decision.chunks, use_hopper=is_hopper(inputs.q.device))


def triton_decisions(shape: AttentionShape, device: torch.device) -> list[Decision]:
    """The one way in which the kernel serves the shape."""
    if shape.num_tokens > MAX_TOKENS:
        return []
    splits = num_splits(shape, device, use_hopper=is_hopper(device))
    phase = Phase.DECODE if splits > 1 else Phase.PREFILL
    return [Decision(Kernel.TRITON, phase, splits)]


def num_splits(shape: AttentionShape, device: torch.device, *, use_hopper: bool) -> int:
    """Parts of the candidates, so that a small batch has a program for each SM.

    The fewest parts that are as short as the SMs allow, and none where that would save
    a program less than ``_MIN_BLOCKS_SAVED``.
    """
    block_heads, block_candidates, _ = _launch_of(shape.num_heads, use_hopper)
    blocks = triton.cdiv(shape.topk, block_candidates) + triton.cdiv(
        shape.extra_topk, block_candidates
    )
    programs = shape.num_tokens * triton.cdiv(shape.num_heads, block_heads)
    parts = max(1, min((sm_count(device) or 1) // programs, blocks, MAX_SPLITS))
    blocks_of_a_part = triton.cdiv(blocks, parts)
    if blocks - blocks_of_a_part < _MIN_BLOCKS_SAVED:
        return 1
    return triton.cdiv(blocks, blocks_of_a_part)


def portable_launch(num_heads: int) -> Launch:
    few = num_heads <= _LAUNCH_FEW_HEADS.block_heads
    return _LAUNCH_FEW_HEADS if few else _LAUNCH_MANY_HEADS


def _launch_of(num_heads: int, use_hopper: bool) -> Launch:
    if not use_hopper:
        return portable_launch(num_heads)
    from sglang_dsv4_nvfp4.kernels import nvfp4_mla_sm90

    return Launch(
        nvfp4_mla_sm90.BLOCK_H.value,
        nvfp4_mla_sm90.BLOCK_N.value,
        nvfp4_mla_sm90.CONSUMER_WARPS,
    )


def run(
    inputs: SparseMLAInputs, num_splits: int, *, use_hopper: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch one of the two kernels; results as :func:`triton_mla`."""
    q = inputs.q if _rows_are_dense(inputs.q) else inputs.q.contiguous()
    num_tokens, num_heads, _ = q.shape
    output = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = scratch.take_lse(num_tokens, num_heads, q.device)
    results = (output, lse)
    if num_splits > 1:
        results = scratch.take_partials((num_splits, num_tokens, num_heads), q.device)
    # Partial results leave the sink to the merge.
    sink = inputs.attn_sink if num_splits == 1 else None
    _launch(inputs, q, sink, results, num_splits, use_hopper)
    if num_splits > 1:
        num_rows = num_tokens * num_heads
        nvfp4_mla.merge_kernel[(num_rows,)](
            *results,
            _or(inputs.attn_sink, lse),
            output,
            lse,
            num_heads,
            num_rows,
            num_splits,
            HAS_SINK=inputs.attn_sink is not None,
            MAX_SPLITS=MAX_SPLITS,
            num_warps=_MERGE_WARPS,
        )
    return output, lse


def _launch(
    inputs: SparseMLAInputs,
    q: torch.Tensor,
    sink: torch.Tensor | None,
    results: tuple[torch.Tensor, torch.Tensor],
    num_splits: int,
    use_hopper: bool,
) -> None:
    num_tokens, num_heads, _ = q.shape
    launch = _launch_of(num_heads, use_hopper)
    grid = (triton.cdiv(num_heads, launch.block_heads), num_tokens, num_splits)
    arguments, constants = _arguments(inputs, q, sink, results, num_splits)
    if use_hopper:
        from sglang_dsv4_nvfp4.kernels import nvfp4_mla_sm90

        nvfp4_mla_sm90.sparse_mla_kernel[grid](
            *arguments, **constants, num_warps=launch.num_warps
        )
        return
    nvfp4_mla.sparse_mla_kernel[grid](
        *arguments,
        **constants,
        BLOCK_H=launch.block_heads,
        BLOCK_N=launch.block_candidates,
        INTERPRETED=knobs.runtime.interpret,
        num_warps=launch.num_warps,
        # The next block is loaded ahead by hand; Triton's pipeliner is not asked.
        num_stages=1,
    )


def _arguments(
    inputs: SparseMLAInputs,
    q: torch.Tensor,
    sink: torch.Tensor | None,
    results: tuple[torch.Tensor, torch.Tensor],
    num_splits: int,
) -> tuple[tuple, dict]:
    """What both kernels take: arguments by position, and constants by name."""
    num_tokens, num_heads, _ = q.shape
    main = inputs.main
    # Without an extra cache the main one stands in, with no candidates.
    extra = inputs.extra or main
    extra_topk = inputs.extra.indices.shape[1] if inputs.extra else 0
    main_indices = main.indices.contiguous()
    extra_indices = extra.indices.contiguous()
    arguments = (
        q,
        main.cache,
        main_indices,
        _or(main.lengths, main_indices),
        extra.cache,
        extra_indices,
        _or(extra.lengths, extra_indices),
        _or(sink, results[1]),
        *results,
        q.stride(0),
        main.cache.stride(0),
        extra.cache.stride(0),
        main_indices.shape[1],
        extra_topk,
        num_tokens,
        num_heads,
        num_splits,
        inputs.softmax_scale,
    )
    return arguments, dict(
        PAGE_SIZE=main.cache.shape[1],
        EXTRA_PAGE_SIZE=extra.cache.shape[1],
        HAS_LENGTHS=main.lengths is not None,
        HAS_EXTRA_LENGTHS=extra.lengths is not None,
        HAS_SINK=sink is not None,
    )


def _or(tensor: torch.Tensor | None, stand_in: torch.Tensor) -> torch.Tensor:
    """A kernel's pointer argument that nothing reads, where there is no tensor."""
    return stand_in if tensor is None else tensor.contiguous()


def _rows_are_dense(q: torch.Tensor) -> bool:
    _, num_heads, dim = q.shape
    return q.stride()[1:] == (dim, 1) and q.stride(0) >= num_heads * dim


@functools.cache
def is_hopper(device: torch.device) -> bool:
    # The warp-specialized kernel is written for this chip's instructions alone.
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == _HOPPER
