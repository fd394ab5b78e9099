"""What reads FP8 on this GPU: the side that NVFP4's kernels are timed against."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable

import torch

from sglang_dsv4_nvfp4.attention import triton_backend
from sglang_dsv4_nvfp4.attention.inputs import CandidateSet, SparseMLAInputs
from sglang_dsv4_nvfp4.layout import LATENT_DIM, NOPE_DIM, ROPE_BYTES, ROPE_DIM

FALLBACK = "SGLang's Triton fallback (FP8)"
FLASHMLA = "FlashMLA (FP8)"
FLASHINFER = "SGLang with FlashInfer (FP8)"

# SGLang's FP8 pages: FP8 NoPE and BF16 RoPE values, then 8 bytes of E8M0 scales a token.
_PAGE_SIZE = 64
_DATA_BYTES = NOPE_DIM + ROPE_BYTES
_BYTES_PER_TOKEN = _DATA_BYTES + 8
_E8M0_ONE = 127
_FLASHMLA_HEADS = (64, 128)


class FP8Baseline:
    """The same slots as an NVFP4 call's, in FP8 pages of 64 throughout."""

    def __init__(self, num_slots: int) -> None:
        self.pages = _pages(num_slots // _PAGE_SIZE)

    def readers(self) -> dict[str, Callable[[SparseMLAInputs], Callable[[], None]]]:
        """By name, what makes of an NVFP4 call's inputs a run of this GPU's FP8 kernels.

        FlashMLA on Hopper, where it is installed; what SGLang serves on an SM120.
        """
        found = {}
        is_hopper = triton_backend.is_hopper(self.pages.device)
        if is_hopper and importlib.util.find_spec("flash_mla") is not None:
            found[FLASHMLA] = self.flash_mla
        if torch.cuda.get_device_capability()[0] == 12:
            found[FLASHINFER] = self.flashinfer
        return found

    def flashinfer(self, made: SparseMLAInputs) -> Callable[[], None]:
        """``flash_mla_with_kvcache_sm120``, as SGLang calls it."""
        from sglang.kernels.ops.attention.flash_mla_sm120 import (
            flash_mla_with_kvcache_sm120,
        )

        return functools.partial(
            flash_mla_with_kvcache_sm120,
            q=made.q.unsqueeze(1),
            k_cache=self.pages,
            indices=made.main.indices.unsqueeze(1),
            topk_length=made.main.lengths,
            attn_sink=made.attn_sink,
            head_dim_v=LATENT_DIM,
            softmax_scale=made.softmax_scale,
            extra_k_cache=self.pages,
            extra_indices_in_kvcache=_extra(made).indices.unsqueeze(1),
            extra_topk_length=_extra(made).lengths,
        )

    def flash_mla(self, made: SparseMLAInputs) -> Callable[[], None]:
        """FlashMLA's kernel of this format; fewer heads are padded to 64."""
        from flash_mla import flash_mla_with_kvcache, get_mla_metadata

        heads = made.q.shape[1]
        padded = next(count for count in _FLASHMLA_HEADS if count >= heads)
        q = torch.zeros(len(made.q), 1, padded, LATENT_DIM, device="cuda").bfloat16()
        q[:, 0, :heads] = made.q
        metadata, _ = get_mla_metadata()
        return functools.partial(
            flash_mla_with_kvcache,
            q,
            self.pages,
            None,
            None,
            LATENT_DIM,
            metadata,
            softmax_scale=made.softmax_scale,
            is_fp8_kvcache=True,
            indices=made.main.indices.unsqueeze(1),
            topk_length=made.main.lengths,
            attn_sink=torch.zeros(padded, device="cuda"),
            extra_k_cache=self.pages,
            extra_indices_in_kvcache=_extra(made).indices.unsqueeze(1),
            extra_topk_length=_extra(made).lengths,
            # This format's kernels for compute capability 9.0.
            use_legacy=True,
        )

    def fallback(self, made: SparseMLAInputs) -> Callable[[], None]:
        """SGLang's Triton kernel, for whatever has no other; very slow."""
        from sglang.kernels.ops.attention.flash_mla_sm120_triton import (
            flash_mla_sparse_decode_triton,
        )

        return functools.partial(
            flash_mla_sparse_decode_triton,
            made.q.unsqueeze(1),
            self.pages,
            made.main.indices.unsqueeze(1),
            made.main.lengths,
            made.attn_sink,
            LATENT_DIM,
            made.softmax_scale,
            extra_k_cache=self.pages,
            extra_indices=_extra(made).indices.unsqueeze(1),
            extra_topk_length=_extra(made).lengths,
        )


def _extra(made: SparseMLAInputs) -> CandidateSet:
    assert made.extra is not None, "compressed entries are part of what is compared"
    return made.extra


def _pages(num_pages: int) -> torch.Tensor:
    """Normal rows, as NVFP4's pages hold; scales of one."""
    pages = torch.empty(
        num_pages, _PAGE_SIZE * _BYTES_PER_TOKEN, dtype=torch.uint8, device="cuda"
    )
    data = pages[:, : _PAGE_SIZE * _DATA_BYTES]
    data = data.view(num_pages, _PAGE_SIZE, _DATA_BYTES)
    generator = torch.Generator("cuda").manual_seed(1)
    shape = (num_pages, _PAGE_SIZE)
    nope = torch.randn(*shape, NOPE_DIM, device="cuda", generator=generator)
    data[:, :, :NOPE_DIM] = nope.to(torch.float8_e4m3fn).view(torch.uint8)
    rope = torch.randn(*shape, ROPE_DIM, device="cuda", generator=generator)
    data[:, :, NOPE_DIM:] = rope.bfloat16().view(torch.uint8)
    pages[:, _PAGE_SIZE * _DATA_BYTES :] = _E8M0_ONE
    return pages.view(torch.float8_e4m3fn).view(
        num_pages, _PAGE_SIZE, 1, _BYTES_PER_TOKEN
    )
