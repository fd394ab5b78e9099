"""Attention inside CUDA graphs, by the kernels that any CUDA device runs.

No synchronization, no copy from the host, and indices and lengths read anew by each
replay.
"""

import pytest
import torch
from support.pools import random_rows

from sglang_dsv4_nvfp4.quantize import quantize_pack

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"
)

HEADS = 16


@pytest.mark.parametrize("tokens", [7, 200])
@pytest.mark.parametrize("kernel", ["torch", "triton"])
def test_replays_attend_to_what_the_indices_say(
    device, generator, monkeypatch, kernel, tokens
):
    from sglang.kernels.ops.attention.flash_mla_sm120 import (
        flash_mla_with_kvcache_sm120,
    )

    monkeypatch.setenv("SGLANG_SM120_NVFP4_KERNEL", kernel)
    main = quantize_pack(random_rows(generator, 512, device).view(8, 64, 512))
    extra = quantize_pack(random_rows(generator, 64, device).view(32, 2, 512))
    call = dict(
        q=torch.zeros(tokens, 1, HEADS, 512, dtype=torch.bfloat16, device=device),
        k_cache=main.view(2, 256, 1, 384),
        indices=torch.zeros(tokens, 1, 128, dtype=torch.int32, device=device),
        topk_length=torch.zeros(tokens, dtype=torch.int32, device=device),
        attn_sink=torch.zeros(HEADS, device=device),
        head_dim_v=512,
        softmax_scale=512**-0.5,
        extra_k_cache=extra.view(32, 2, 1, 384),
        extra_indices_in_kvcache=torch.zeros(
            tokens, 1, 64, dtype=torch.int32, device=device
        ),
        extra_topk_length=torch.zeros(tokens, dtype=torch.int32, device=device),
    )
    flash_mla_with_kvcache_sm120(**call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured, captured_lse = flash_mla_with_kvcache_sm120(**call)
    for _ in range(3):
        call["q"].copy_(torch.randn(call["q"].shape, generator=generator))
        for name, limit in (("indices", 512), ("extra_indices_in_kvcache", 64)):
            drawn = torch.randint(-1, limit, call[name].shape, generator=generator)
            call[name].copy_(drawn)
        for name, limit in (("topk_length", 129), ("extra_topk_length", 65)):
            drawn = torch.randint(0, limit, call[name].shape, generator=generator)
            call[name].copy_(drawn)
        graph.replay()
        output, lse = flash_mla_with_kvcache_sm120(**call)
        torch.testing.assert_close(captured, output)
        if kernel == "torch":
            # The other kernels' LSE is scratch, which the next call has taken.
            torch.testing.assert_close(captured_lse, lse)
        assert captured.abs().sum() > 0


def test_a_batch_that_was_not_warmed_up_is_refused_under_capture(
    device, generator, monkeypatch
):
    from sglang.kernels.ops.attention.flash_mla_sm120 import (
        flash_mla_with_kvcache_sm120,
    )

    monkeypatch.setenv("SGLANG_SM120_NVFP4_KERNEL", "triton")
    cache = quantize_pack(random_rows(generator, 64, device).view(1, 64, 512))
    call = dict(
        q=torch.zeros(61, 1, 8, 512, dtype=torch.bfloat16, device=device),
        k_cache=cache.view(1, 64, 1, 384),
        indices=torch.zeros(61, 1, 192, dtype=torch.int32, device=device),
        head_dim_v=512,
    )
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(RuntimeError, match="not planned before CUDA graph capture"),
        torch.cuda.graph(graph),
    ):
        flash_mla_with_kvcache_sm120(**call)
