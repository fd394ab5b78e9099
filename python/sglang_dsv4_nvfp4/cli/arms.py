"""The two formats of the demo, each behind SGLang's own pool class.

An arm writes a workload through SGLang's entry points and reads it back through
``flash_mla_with_kvcache_sm120``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from sglang_dsv4_nvfp4.cli.pools import build_pool, pool_class
from sglang_dsv4_nvfp4.cli.workload import NORM_EPS, Candidates, Step, Workload
from sglang_dsv4_nvfp4.config import KVCacheFormat
from sglang_dsv4_nvfp4.layout import LATENT_DIM, NOPE_DIM
from sglang_dsv4_nvfp4.store.compress_plan import PLAN_ROW_BYTES

_FP8_TILE = 64
_FP8_MAX = 448.0


class Arm(ABC):
    """One format: a pool for one layer per compress ratio of the workload."""

    kv_format: KVCacheFormat

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.pool = build_pool(
            pool_class(self.kv_format),
            device=workload.device,
            compression_ratios=workload.compress_ratios,
            num_slots=workload.num_slots,
            max_num_reqs=len(workload.prompt_lens),
        )

    @abstractmethod
    def write_window(self, layer: int, step: Step) -> None:
        """Write a step's latents to the layer's sliding window."""

    @abstractmethod
    def write_compressed(self, layer: int, step: Step) -> None:
        """Write the compressed entries that a step's tokens complete."""

    def write(self, layer: int, step: Step) -> None:
        """Write everything of one step."""
        self.write_window(layer, step)
        if self.workload.compress_ratios[layer]:
            self.write_compressed(layer, step)

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        window: Candidates,
        compressed: Candidates | None,
        attn_sink: torch.Tensor,
    ) -> torch.Tensor:
        """``[tokens, heads, 512]`` BF16, as SGLang's backend asks for it."""
        from sglang.kernels.ops.attention.flash_mla_sm120 import (
            flash_mla_with_kvcache_sm120,
        )

        pool = self.pool
        extra = {}
        if compressed is not None:
            extra = {
                "extra_k_cache": _four_dims(
                    pool.get_extra_key_buffer(layer),
                    pool.get_extra_key_page_size(layer),
                    pool.get_extra_key_bytes_per_token(layer),
                ),
                "extra_indices_in_kvcache": compressed.indices.unsqueeze(1),
                "extra_topk_length": compressed.lengths,
            }
        output, _ = flash_mla_with_kvcache_sm120(
            q=q,
            k_cache=_four_dims(
                pool.get_swa_key_buffer_radix(layer),
                pool.get_swa_key_page_size(),
                pool.get_swa_key_bytes_per_token(),
            ),
            head_dim_v=LATENT_DIM,
            softmax_scale=LATENT_DIM**-0.5,
            indices=window.indices.unsqueeze(1),
            topk_length=window.lengths,
            attn_sink=attn_sink,
            **extra,
        )
        return output.squeeze(1)


class FP8Arm(Arm):
    """SGLang's stock pool. Its fused stores are CUDA; elsewhere, the packed ones."""

    kv_format = KVCacheFormat.FP8

    def write_window(self, layer: int, step: Step) -> None:
        rows = self.workload.window_rows(layer, step)
        slots = step.slot.int()
        if rows.is_cuda:
            self.pool.set_swa_key_buffer_radix_fused(layer, slots, rows)
        else:
            self.pool.set_swa_key_buffer_radix(layer, slots, pack_fp8(rows))

    def write_compressed(self, layer: int, step: Step) -> None:
        ends = self.workload.ends_group(layer, step)
        if not ends.any():
            return
        rows = self.workload.compressed_rows(layer, step)
        slots = self.workload.compressed_slots(layer, step)[ends].int()
        if rows.is_cuda:
            self.pool.set_extra_key_buffer_fused(layer, slots, rows)
        else:
            self.pool.set_extra_key_buffer(layer, slots, pack_fp8(rows))


class NVFP4Arm(Arm):
    """This package's pool, through each of the ways that SGLang writes it."""

    kv_format = KVCacheFormat.NVFP4

    def write_window(self, layer: int, step: Step) -> None:
        slots = step.slot.int()
        if step.is_decode:
            rows = self.workload.window_rows(layer, step)
            self.pool.set_swa_key_buffer_radix_fused(layer, slots, rows)
            return
        self.pool.set_swa_key_buffer_radix_fused_norm_rope(
            layer_id=layer,
            swa_loc=slots,
            kv=self.workload.latents(layer, step),
            kv_weight=self.workload.norm_weight,
            eps=NORM_EPS,
            freqs_cis=self.workload.freqs_cis,
            positions=step.position,
        )

    def write_compressed(self, layer: int, step: Step) -> None:
        from sglang.kernels.ops.attention.dsv4 import compress_norm_rope_store

        kv = self.workload.compressed_latents(layer, step)
        plan, plan_rows = self._plan(layer, step)
        compress_norm_rope_store(
            kv[plan_rows],
            plan,
            norm_weight=self.workload.norm_weight,
            norm_eps=NORM_EPS,
            freq_cis=self.workload.freqs_cis,
            out_loc=self.workload.compressed_slots(layer, step),
            kvcache=self.pool.get_extra_key_buffer(layer),
            page_size=self.pool.get_extra_key_page_size(layer),
            layout=self.pool.get_extra_key_layout(layer),
        )

    def _plan(self, layer: int, step: Step):
        """The compressor's plan of a step, and the tokens its rows stand for.

        SGLang builds it in CUDA; here it is spelled out: decode has a row per
        request, prefill one per finished group.
        """
        from sglang.kernels.ops.attention.dsv4 import (
            CompressorDecodePlan,
            CompressorPrefillPlan,
        )

        ratio = self.workload.compress_ratios[layer]
        tokens = torch.arange(step.position.shape[0], device=step.position.device)
        if not step.is_decode:
            tokens = tokens[self.workload.ends_group(layer, step)]
        words = torch.zeros(
            (tokens.shape[0], PLAN_ROW_BYTES // 4),
            dtype=torch.int32,
            device=tokens.device,
        )
        words[:, 0] = step.position[tokens] + 1
        if step.is_decode:
            return CompressorDecodePlan(ratio, words.view(torch.uint8)), tokens
        words[:, 1] = tokens
        writes = torch.empty((0, 8), dtype=torch.uint8, device=tokens.device)
        return CompressorPrefillPlan(ratio, words.view(torch.uint8), writes), tokens


def _four_dims(
    buffer: torch.Tensor, page_size: int, bytes_per_token: int
) -> torch.Tensor:
    """The view that SGLang's backend makes of a pool's buffer for its kernels."""
    return buffer[:, : page_size * bytes_per_token].view(
        buffer.shape[0], page_size, 1, bytes_per_token
    )


def pack_fp8(rows: torch.Tensor):
    """BF16 rows in SGLang's packed FP8 form, for its packed setters.

    Its own packer is a Triton kernel, and Triton's interpreter does not round FP8
    to nearest: it would make FP8 look worse than it is.
    """
    from sglang.kernels.ops.kvcache.dsv4_main_kv_store import NopeFp8RopeBf16Pack

    num_rows = rows.shape[0]
    tiles = rows[:, :NOPE_DIM].float().view(num_rows, NOPE_DIM // _FP8_TILE, _FP8_TILE)
    amax = tiles.abs().amax(dim=-1).clamp(min=1e-8)
    exponent = torch.ceil(torch.log2(amax / _FP8_MAX))
    scaled = tiles * torch.exp2(-exponent)[..., None]
    nope = scaled.clamp(-_FP8_MAX, _FP8_MAX).to(torch.float8_e4m3fn)
    return NopeFp8RopeBf16Pack(
        k_nope_fp8=nope.view(num_rows, NOPE_DIM),
        k_rope_bf16=rows[:, NOPE_DIM:].contiguous(),
        scale_k_nope_ue8m0=(exponent.int() + 127).to(torch.uint8),
    )
