"""One sparse-MLA call over NVFP4 pages, in the shapes that the backends take.

In-tree: ``sglang/kernels/ops/attention/dsv4_nvfp4/inputs.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from sglang_dsv4_nvfp4.arena import is_capturing
from sglang_dsv4_nvfp4.config import CHECK_INDICES_ENV, checks_indices
from sglang_dsv4_nvfp4.layout import (
    BYTES_PER_TOKEN,
    LATENT_DIM,
    PAGE_ALIGNMENT,
    kernel_view,
    pages_are_aligned,
)


class AttentionShape(NamedTuple):
    """What decides which kernel serves a call. Page sizes and widths are in tokens."""

    num_tokens: int
    num_heads: int
    topk: int
    page_size: int
    extra_topk: int = 0
    extra_page_size: int = 0
    has_topk_length: bool = False
    has_extra_topk_length: bool = False
    has_attn_sink: bool = False

    def __str__(self) -> str:
        text = (
            f"{self.num_tokens} query tokens, {self.num_heads} heads, top-k "
            f"{self.topk} on pages of {self.page_size}"
        )
        if self.extra_topk:
            text += (
                f", extra top-k {self.extra_topk} on pages of {self.extra_page_size}"
            )
        return text


@dataclass(frozen=True)
class CandidateSet:
    """Candidates of one cache.

    cache: ``[pages, page_size, 384]`` uint8 kernel view.
    indices: ``[tokens, k]`` int32 slots; -1 is no candidate.
    lengths: ``[tokens]`` int32, how many of the k count; None for all.
    """

    cache: torch.Tensor
    indices: torch.Tensor
    lengths: torch.Tensor | None


@dataclass(frozen=True)
class SparseMLAInputs:
    """A validated call.

    q: ``[tokens, heads, 512]`` BF16.
    attn_sink: ``[heads]`` FP32, a logit that adds to each denominator; None for none.
    """

    q: torch.Tensor
    main: CandidateSet
    extra: CandidateSet | None
    attn_sink: torch.Tensor | None
    softmax_scale: float

    @property
    def candidates(self) -> list[CandidateSet]:
        return [self.main] + ([self.extra] if self.extra else [])

    @property
    def shape(self) -> AttentionShape:
        num_tokens, num_heads, _ = self.q.shape
        extra = self.extra
        return AttentionShape(
            num_tokens=num_tokens,
            num_heads=num_heads,
            topk=self.main.indices.shape[1],
            page_size=self.main.cache.shape[1],
            extra_topk=extra.indices.shape[1] if extra else 0,
            extra_page_size=extra.cache.shape[1] if extra else 0,
            has_topk_length=self.main.lengths is not None,
            has_extra_topk_length=extra is not None and extra.lengths is not None,
            has_attn_sink=self.attn_sink is not None,
        )


def make_inputs(
    *,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    indices: torch.Tensor,
    topk_length: torch.Tensor | None,
    attn_sink: torch.Tensor | None,
    softmax_scale: float | None,
    extra_k_cache: torch.Tensor | None,
    extra_indices: torch.Tensor | None,
    extra_topk_length: torch.Tensor | None,
) -> SparseMLAInputs:
    """Check SGLang's tensors and give them the shapes of :class:`SparseMLAInputs`.

    Args:
        q: ``[tokens, 1, heads, 512]`` BF16.
        k_cache, extra_k_cache: ``[rows, page_size, 1, 384]``, any one-byte dtype.
        indices, extra_indices: ``[tokens, 1, k]`` or ``[tokens, k]`` int32.
        softmax_scale: None for ``512 ** -0.5``.

    Raises:
        ValueError: naming the argument that does not fit. Slots past the pool are
            looked for only if ``SGLANG_SM120_NVFP4_CHECK_INDICES`` is 1, and outside
            of CUDA graph capture: the check synchronizes.
    """
    _check_query(q, attn_sink)
    num_tokens = q.shape[0]
    if (extra_k_cache is None) != (extra_indices is None):
        raise ValueError(
            "extra_k_cache and extra_indices_in_kvcache must be given together"
        )
    if extra_topk_length is not None and extra_indices is None:
        raise ValueError("extra_topk_length needs extra_indices_in_kvcache")
    _check_devices(
        q.device,
        k_cache=k_cache,
        indices=indices,
        topk_length=topk_length,
        attn_sink=attn_sink,
        extra_k_cache=extra_k_cache,
        extra_indices_in_kvcache=extra_indices,
        extra_topk_length=extra_topk_length,
    )
    extra = None
    if extra_k_cache is not None:
        extra = _candidates(
            "extra_", extra_k_cache, extra_indices, extra_topk_length, num_tokens
        )
    return SparseMLAInputs(
        q=q.squeeze(1),
        main=_candidates("", k_cache, indices, topk_length, num_tokens),
        extra=extra,
        attn_sink=attn_sink,
        softmax_scale=LATENT_DIM**-0.5 if softmax_scale is None else softmax_scale,
    )


def _check_query(q: torch.Tensor, attn_sink: torch.Tensor | None) -> None:
    if q.ndim != 4 or q.shape[1] != 1 or q.shape[3] != LATENT_DIM:
        raise ValueError(
            f"q must be [tokens, 1, heads, {LATENT_DIM}], got {tuple(q.shape)}"
        )
    if q.dtype != torch.bfloat16:
        raise ValueError(f"q must be bfloat16, got {q.dtype}")
    num_heads = q.shape[2]
    if attn_sink is not None and (
        attn_sink.dtype != torch.float32 or attn_sink.shape != (num_heads,)
    ):
        raise ValueError(
            f"attn_sink must be float32 [{num_heads}], got {attn_sink.dtype} "
            f"{tuple(attn_sink.shape)}"
        )


def _candidates(
    prefix: str,
    k_cache: torch.Tensor,
    indices: torch.Tensor,
    lengths: torch.Tensor | None,
    num_tokens: int,
) -> CandidateSet:
    if k_cache.ndim != 4 or k_cache.shape[2:] != (1, BYTES_PER_TOKEN):
        raise ValueError(
            f"{prefix}k_cache must be [rows, page_size, 1, {BYTES_PER_TOKEN}], got "
            f"{tuple(k_cache.shape)}"
        )
    indices_name = f"{prefix}indices_in_kvcache" if prefix else "indices"
    if indices.ndim == 3 and indices.shape[1] == 1:
        indices = indices.squeeze(1)
    if (
        indices.ndim != 2
        or indices.shape[0] != num_tokens
        or indices.dtype != torch.int32
    ):
        raise ValueError(
            f"{indices_name} must be int32 [{num_tokens}, 1, k], got {indices.dtype} "
            f"{tuple(indices.shape)}"
        )
    if lengths is not None and (
        lengths.shape != (num_tokens,) or lengths.dtype != torch.int32
    ):
        raise ValueError(
            f"{prefix}topk_length must be int32 [{num_tokens}], got {lengths.dtype} "
            f"{tuple(lengths.shape)}"
        )
    try:
        cache = kernel_view(k_cache, k_cache.shape[1])
    except ValueError as error:
        raise ValueError(f"{prefix}k_cache: {error}") from error
    if not pages_are_aligned(cache):
        raise ValueError(
            f"{prefix}k_cache must start at a multiple of {PAGE_ALIGNMENT} bytes"
        )
    if checks_indices() and not is_capturing(indices.device):
        _check_slots(indices_name, indices, lengths, cache)
    return CandidateSet(cache=cache, indices=indices, lengths=lengths)


def within_lengths(mask: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """``[tokens, k]`` bool ``mask`` where the index is one of those that count."""
    if lengths is None:
        return mask
    return mask & (torch.arange(mask.shape[1], device=mask.device) < lengths[:, None])


def _check_devices(device: torch.device, **tensors: torch.Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}, but q on {device}")


def _check_slots(
    name: str,
    indices: torch.Tensor,
    lengths: torch.Tensor | None,
    cache: torch.Tensor,
) -> None:
    """Refuse slots past the pool among the indices that count."""
    num_slots = cache.shape[0] * cache.shape[1]
    past = within_lengths(indices >= num_slots, lengths)
    if past.any():
        token, place = past.nonzero()[0].tolist()
        raise ValueError(
            f"{name}[{token}, {place}] is slot {int(indices[token, place])}, past the "
            f"pool's {num_slots} ({CHECK_INDICES_ENV}=1)"
        )
