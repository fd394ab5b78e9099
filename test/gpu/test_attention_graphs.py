"""Attention inside CUDA graphs, by the PyTorch backend on any CUDA device.

What holds for it holds for the branch around it: no synchronization, no copy from
the host, and indices and lengths read anew by each replay.
"""

import pytest
import torch
from support.pools import random_rows

from sglang_dsv4_nvfp4.quantize import quantize_pack

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"
)

TOKENS, HEADS = 7, 16


def test_replays_attend_to_what_the_indices_say(device, generator, monkeypatch):
    from sglang.kernels.ops.attention.flash_mla_sm120 import (
        flash_mla_with_kvcache_sm120,
    )

    monkeypatch.setenv("SGLANG_SM120_FLASHMLA_BACKEND", "torch")
    main = quantize_pack(random_rows(generator, 512, device).view(8, 64, 512))
    extra = quantize_pack(random_rows(generator, 64, device).view(32, 2, 512))
    call = dict(
        q=torch.zeros(TOKENS, 1, HEADS, 512, dtype=torch.bfloat16, device=device),
        k_cache=main.view(2, 256, 1, 384),
        indices=torch.zeros(TOKENS, 1, 128, dtype=torch.int32, device=device),
        topk_length=torch.zeros(TOKENS, dtype=torch.int32, device=device),
        attn_sink=torch.zeros(HEADS, device=device),
        head_dim_v=512,
        softmax_scale=512**-0.5,
        extra_k_cache=extra.view(32, 2, 1, 384),
        extra_indices_in_kvcache=torch.zeros(
            TOKENS, 1, 64, dtype=torch.int32, device=device
        ),
        extra_topk_length=torch.zeros(TOKENS, dtype=torch.int32, device=device),
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
        torch.testing.assert_close(captured_lse, lse)
        assert captured.abs().sum() > 0
