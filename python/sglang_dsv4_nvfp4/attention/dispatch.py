"""The NVFP4 branch of ``flash_mla_with_kvcache_sm120``.

In-tree: ``sglang/kernels/ops/attention/dsv4_nvfp4/dispatch.py``.
"""

from __future__ import annotations

import torch

from sglang_dsv4_nvfp4.attention import (
    flashinfer_backend,
    torch_backend,
    triton_backend,
)
from sglang_dsv4_nvfp4.attention.decision import Decision
from sglang_dsv4_nvfp4.attention.inputs import SparseMLAInputs, make_inputs
from sglang_dsv4_nvfp4.attention.planner import Planner
from sglang_dsv4_nvfp4.config import Kernel, kernel
from sglang_dsv4_nvfp4.layout import LATENT_DIM

planner = Planner()


def flash_mla_with_nvfp4_kvcache(
    *,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    indices: torch.Tensor,
    head_dim_v: int,
    softmax_scale: float | None = None,
    topk_length: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sparse MLA over one or two paged NVFP4 caches, with SGLang's arguments.

    Args:
        q: ``[tokens, 1, heads, 512]`` BF16.
        k_cache: ``[rows, page_size, 1, 384]``, any one-byte dtype.
        indices: ``[tokens, 1, k]`` int32 slots, -1 for none.
        head_dim_v: 512.
        softmax_scale: None for ``512 ** -0.5``.
        topk_length: ``[tokens]`` int32, how many indices of each row count.
        attn_sink: ``[heads]`` FP32 logits that add to the denominators.
        extra_k_cache, extra_indices_in_kvcache, extra_topk_length: the compressed
            cache's, as above.

    Returns:
        ``[tokens, 1, heads, 512]`` BF16 output, zero where nothing is valid; and
        the natural-log LSE, ``[tokens, heads, 1]`` FP32, -inf there. It is without
        the sink, but FlashInfer's kernels count it; SGLang does not read it.

    Raises:
        ValueError: an argument does not fit, or no kernel serves the shape.
        RuntimeError: the shape was not warmed up before CUDA graph capture.
    """
    if head_dim_v != LATENT_DIM:
        raise ValueError(f"head_dim_v must be {LATENT_DIM}, got {head_dim_v}")
    inputs = make_inputs(
        q=q,
        k_cache=k_cache,
        indices=indices,
        topk_length=topk_length,
        attn_sink=attn_sink,
        softmax_scale=softmax_scale,
        extra_k_cache=extra_k_cache,
        extra_indices=extra_indices_in_kvcache,
        extra_topk_length=extra_topk_length,
    )
    num_tokens, num_heads, _ = inputs.q.shape
    if num_tokens == 0:
        # An idle rank of DP attention; no kernel takes an empty batch.
        return q.new_empty(q.shape), q.new_empty((0, num_heads, 1), dtype=torch.float32)
    decision = planner.plan(inputs.shape, inputs.q.device, kernel())
    output, lse = launch(inputs, decision)
    return output.unsqueeze(1), lse.unsqueeze(-1)


def launch(
    inputs: SparseMLAInputs, decision: Decision
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run ``decision``: ``[tokens, heads, 512]`` BF16 and ``[tokens, heads]`` FP32."""
    match decision.kernel:
        case Kernel.SPARSE:
            return flashinfer_backend.sparse_mla(inputs, decision)
        case Kernel.CAKE:
            return flashinfer_backend.cake_mla(inputs, decision)
        case Kernel.TRITON:
            return triton_backend.triton_mla(inputs, decision)
        case Kernel.TORCH:
            return torch_backend.torch_mla(inputs)
    raise ValueError(f"a decision names a kernel, got {decision}")
