"""The NVFP4 branch of SGLang's SM120 attention: what it takes and what it refuses."""

import pytest
import torch

from sglang_dsv4_nvfp4.attention.dispatch import flash_mla_with_nvfp4_kvcache

TOKENS, HEADS = 3, 16


def arguments(**changes):
    made = dict(
        q=torch.zeros(TOKENS, 1, HEADS, 512, dtype=torch.bfloat16),
        k_cache=torch.zeros(2, 64, 1, 384, dtype=torch.uint8),
        indices=torch.zeros(TOKENS, 1, 128, dtype=torch.int32),
        head_dim_v=512,
        topk_length=torch.full((TOKENS,), 128, dtype=torch.int32),
        attn_sink=torch.zeros(HEADS),
    )
    return {**made, **changes}


@pytest.fixture(autouse=True)
def torch_is_asked_for(monkeypatch):
    monkeypatch.setenv("SGLANG_SM120_FLASHMLA_BACKEND", "torch")


def test_a_cache_of_another_width_is_sglangs(device):
    from sglang_dsv4_nvfp4 import seams

    fp8 = torch.zeros(2, 64, 1, 584, dtype=torch.uint8)
    kwargs = arguments(k_cache=fp8)
    calls = []
    result = seams.attend(lambda **given: calls.append(given) or "theirs", **kwargs)
    assert result == "theirs" and calls == [kwargs]


def test_sglangs_calls_reach_the_branch(device, monkeypatch):
    from sglang.kernels.ops.attention.flash_mla_sm120 import (
        flash_mla_with_kvcache_sm120,
    )

    output, lse = flash_mla_with_kvcache_sm120(**arguments())
    assert output.shape == (TOKENS, 1, HEADS, 512) and lse.shape == (TOKENS, HEADS, 1)


@pytest.mark.parametrize("backend", ["torch", "flashinfer"])
def test_zero_query_tokens_give_an_empty_result(monkeypatch, backend):
    monkeypatch.setenv("SGLANG_SM120_FLASHMLA_BACKEND", backend)
    output, lse = flash_mla_with_nvfp4_kvcache(
        **arguments(
            q=torch.zeros(0, 1, HEADS, 512, dtype=torch.bfloat16),
            indices=torch.zeros(0, 1, 128, dtype=torch.int32),
            topk_length=torch.zeros(0, dtype=torch.int32),
        )
    )
    assert output.shape == (0, 1, HEADS, 512) and lse.shape == (0, HEADS, 1)


def test_softmax_scale_defaults_to_the_models(generator):
    q = torch.randn(TOKENS, 1, HEADS, 512, generator=generator).bfloat16()
    cache = torch.randint(0, 100, (2, 64, 1, 384), generator=generator)
    kwargs = arguments(q=q, k_cache=cache.to(torch.uint8))
    default, _ = flash_mla_with_nvfp4_kvcache(**kwargs)
    explicit, _ = flash_mla_with_nvfp4_kvcache(**kwargs, softmax_scale=512**-0.5)
    assert torch.equal(default, explicit)


@pytest.mark.parametrize(
    ("named", "changes"),
    [
        ("head_dim_v", {"head_dim_v": 448}),
        ("q must be", {"q": torch.zeros(TOKENS, HEADS, 512, dtype=torch.bfloat16)}),
        ("q must be bfloat16", {"q": torch.zeros(TOKENS, 1, HEADS, 512)}),
        ("k_cache", {"k_cache": torch.zeros(2, 64 * 384, dtype=torch.uint8)}),
        (
            "contiguous",
            {"k_cache": torch.zeros(4, 64, 1, 384, dtype=torch.uint8)[::2]},
        ),
        ("indices", {"indices": torch.zeros(TOKENS, 1, 128, dtype=torch.int64)}),
        ("indices", {"indices": torch.zeros(2, 1, 128, dtype=torch.int32)}),
        ("topk_length", {"topk_length": torch.zeros(2, dtype=torch.int32)}),
        ("topk_length", {"topk_length": torch.zeros(TOKENS, dtype=torch.int64)}),
        ("attn_sink", {"attn_sink": torch.zeros(64)}),
        ("attn_sink", {"attn_sink": torch.zeros(HEADS, dtype=torch.bfloat16)}),
        (
            "extra_indices_in_kvcache",
            {"extra_k_cache": torch.zeros(2, 2, 1, 384, dtype=torch.uint8)},
        ),
        ("extra_topk_length", {"extra_topk_length": torch.zeros(TOKENS).int()}),
        (
            "extra_k_cache",
            {
                "extra_k_cache": torch.zeros(2, 2, 1, 584, dtype=torch.uint8),
                "extra_indices_in_kvcache": torch.zeros(TOKENS, 1, 64).int(),
            },
        ),
    ],
)
def test_bad_input_is_named(named, changes):
    with pytest.raises(ValueError, match=named):
        flash_mla_with_nvfp4_kvcache(**arguments(**changes))
