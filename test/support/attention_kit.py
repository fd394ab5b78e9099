"""SGLang's DeepSeek-V4 attention kit over the pools of either format.

The kit packs FP8 rows itself, and compares with attention over the BF16 rows that it
packed. For NVFP4 its writer hands the rows on, its pool stores them, and its references
read them rounded as NVFP4 rounds them (by ``quantize.py``, which no kernel shares): so
the kit's own tolerances hold, and they are for everything but the rounding.
"""

import copy
import unittest
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from sglang.srt.layers.attention import deepseek_v4_backend
from sglang.srt.runtime_context import get_context
from sglang.test.kits.attention_unittest.attention_methods import dsv4_attention as kit

from sglang_dsv4_nvfp4.cli.pools import pool_class
from sglang_dsv4_nvfp4.config import KVCacheFormat
from sglang_dsv4_nvfp4.mem_cache.token_to_kv_pool import DeepSeekV4NVFP4TokenToKVPool
from sglang_dsv4_nvfp4.quantize import dequantize_rows, quantize_rows

_REFERENCES = (
    "_pure_torch_dsv4_swa_reference",
    "_pure_torch_dsv4_combined_reference",
)


class KitPool(DeepSeekV4NVFP4TokenToKVPool):
    """Takes BF16 rows where the kit writes rows that its packer made."""

    def set_swa_key_buffer_radix(
        self, layer_id, swa_loc, cache_nope_fp8_rope_bf16_pack
    ):
        rows = cache_nope_fp8_rope_bf16_pack
        self.set_swa_key_buffer_radix_fused(layer_id, swa_loc, rows)

    def set_extra_key_buffer(self, layer_id, loc, cache_nope_fp8_rope_bf16_pack):
        rows = cache_nope_fp8_rope_bf16_pack
        self.set_extra_key_buffer_fused(layer_id, loc, rows)


class KitTestCase(unittest.TestCase):
    """The kit skips where a backend does not start; here that is a failure."""

    def skipTest(self, reason):
        raise AssertionError(f"the kit did not run: {reason}")


def make_case(
    mode, prefix_lens, extend_lens=(), ratio=0, num_heads=64
) -> kit.DSV4AttentionCase:
    """A case whose sink weighs."""
    return kit.DSV4AttentionCase(
        name=f"{mode.name}_c{ratio}",
        backend="dsv4",
        forward_mode=mode,
        num_heads=num_heads,
        page_size=kit.DSV4_PAGE_SIZE,
        prefix_lens=prefix_lens,
        extend_lens=extend_lens,
        compress_ratio=ratio,
        attn_sink_value=0.0,
    )


@contextmanager
def format_scope(monkeypatch, kv_format: KVCacheFormat) -> Iterator[None]:
    """Have the kit build, write and check pools of ``kv_format``.

    Each of its runners publishes server args and leaves them: here they end.
    """
    with get_context().override_server_args():
        _use_format(monkeypatch, kv_format)
        yield


def _use_format(monkeypatch, kv_format: KVCacheFormat) -> None:
    stock_pool = pool_class(KVCacheFormat.FP8)
    # What the backend asserts its pool to be; ours is a subclass.
    monkeypatch.setattr(deepseek_v4_backend, "DeepSeekV4TokenToKVPool", stock_pool)
    monkeypatch.setattr(kit, "DeepSeekV4TokenToKVPool", stock_pool)
    if kv_format is KVCacheFormat.FP8:
        return
    monkeypatch.setattr(kit, "DeepSeekV4TokenToKVPool", KitPool)
    monkeypatch.setattr(
        kit, "quant_to_nope_fp8_rope_bf16_pack_triton", lambda rows: rows
    )
    for name in _REFERENCES:
        monkeypatch.setattr(kit, name, _of_rounded_rows(getattr(kit, name)))


def rounded(rows: torch.Tensor) -> torch.Tensor:
    """``[n, 512]`` rows as NVFP4 gives them back."""
    return dequantize_rows(*quantize_rows(rows.bfloat16()))


def _of_rounded_rows(reference):
    def attend(fixture, *args, **kwargs):
        stored = copy.copy(fixture)
        stored._swa_bf16_k_per_req = [
            rounded(rows) for rows in fixture._swa_bf16_k_per_req
        ]
        if hasattr(fixture, "_extra_bf16_k"):
            stored._extra_bf16_k = rounded(fixture._extra_bf16_k)
        return reference(stored, *args, **kwargs)

    return attend
