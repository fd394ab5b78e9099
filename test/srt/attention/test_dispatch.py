"""The NVFP4 branch of SGLang's SM120 attention: what it takes and what it refuses."""

import pytest
import torch

from sglang_dsv4_nvfp4 import config
from sglang_dsv4_nvfp4.attention.dispatch import flash_mla_with_nvfp4_kvcache
from sglang_dsv4_nvfp4.quantize import quantize_pack

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


def test_a_cache_of_another_width_is_sglangs(device, monkeypatch):
    from sglang.kernels.ops.attention import flash_mla_sm120

    calls = []
    monkeypatch.setattr(flash_mla_sm120, "_sm120_default_backend", "torch")
    monkeypatch.setattr(
        flash_mla_sm120,
        "_sm120_sparse_decode_fwd",
        lambda q, k_cache, *others: (calls.append(k_cache), "their LSE"),
    )
    fp8 = torch.zeros(2, 64, 1, 584, dtype=torch.uint8)
    _, lse = flash_mla_sm120.flash_mla_with_kvcache_sm120(**arguments(k_cache=fp8))
    assert lse == "their LSE"
    assert len(calls) == 1 and calls[0] is fp8


def test_sglangs_calls_reach_the_branch(device, monkeypatch):
    from sglang.kernels.ops.attention.flash_mla_sm120 import (
        flash_mla_with_kvcache_sm120,
    )

    output, lse = flash_mla_with_kvcache_sm120(**arguments())
    assert output.shape == (TOKENS, 1, HEADS, 512) and lse.shape == (TOKENS, HEADS, 1)


@pytest.mark.parametrize("kernel", ["auto", "sparse", "cake", "triton", "torch"])
def test_zero_query_tokens_give_an_empty_result(monkeypatch, kernel):
    monkeypatch.setenv("SGLANG_SM120_NVFP4_KERNEL", kernel)
    output, lse = flash_mla_with_nvfp4_kvcache(
        **arguments(
            q=torch.zeros(0, 1, HEADS, 512, dtype=torch.bfloat16),
            indices=torch.zeros(0, 1, 128, dtype=torch.int32),
            topk_length=torch.zeros(0, dtype=torch.int32),
        )
    )
    assert output.shape == (0, 1, HEADS, 512) and lse.shape == (0, HEADS, 1)


@pytest.mark.parametrize(
    ("backend", "kernel"), [("torch", "torch"), ("triton", "triton")]
)
def test_without_a_kernel_of_its_own_sglangs_variable_decides(
    monkeypatch, backend, kernel
):
    monkeypatch.delenv("SGLANG_SM120_NVFP4_KERNEL", raising=False)
    monkeypatch.setenv("SGLANG_SM120_FLASHMLA_BACKEND", backend)
    assert config.kernel().value == kernel
    monkeypatch.setenv("SGLANG_SM120_NVFP4_KERNEL", "cake")
    assert config.kernel() is config.Kernel.CAKE


def test_flashinfer_means_auto(monkeypatch):
    monkeypatch.delenv("SGLANG_SM120_NVFP4_KERNEL", raising=False)
    for backend in ("", "flashinfer"):
        monkeypatch.setenv("SGLANG_SM120_FLASHMLA_BACKEND", backend)
        assert config.kernel() is config.Kernel.AUTO


def test_triton_and_torch_agree_through_the_branch(device, generator, monkeypatch):
    rows = torch.randn(2, 64, 512, generator=generator).bfloat16()
    q = torch.randn(TOKENS, 1, HEADS, 512, generator=generator).bfloat16()
    slots = torch.randint(-1, 128, (TOKENS, 1, 128), generator=generator)
    kwargs = arguments(
        q=q, k_cache=quantize_pack(rows).unsqueeze(2), indices=slots.int()
    )
    kwargs = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in kwargs.items()
    }
    outputs = {}
    for kernel in ("torch", "triton"):
        monkeypatch.setenv("SGLANG_SM120_NVFP4_KERNEL", kernel)
        outputs[kernel], _ = flash_mla_with_nvfp4_kvcache(**kwargs)
    torch.testing.assert_close(
        outputs["triton"], outputs["torch"], atol=2.0**-6, rtol=2.0**-6
    )


class TestCheckedIndices:
    """Off, a slot past the pool is the caller's fault; on, it is named."""

    @pytest.fixture(autouse=True)
    def checked(self, monkeypatch):
        monkeypatch.setenv("SGLANG_SM120_NVFP4_CHECK_INDICES", "1")

    @staticmethod
    def slots(past):
        indices = torch.zeros(TOKENS, 1, 128, dtype=torch.int32)
        indices[1, 0, 7] = past
        return indices

    def test_a_slot_past_the_pool_is_named(self):
        with pytest.raises(ValueError, match=r"indices\[1, 7\] is slot 128, past.*128"):
            flash_mla_with_nvfp4_kvcache(**arguments(indices=self.slots(128)))

    def test_so_is_one_of_the_extra_cache(self):
        extra = dict(
            extra_k_cache=torch.zeros(4, 2, 1, 384, dtype=torch.uint8),
            extra_indices_in_kvcache=self.slots(8),
        )
        with pytest.raises(
            ValueError, match=r"extra_indices_in_kvcache\[1, 7\] is slot 8, past"
        ):
            flash_mla_with_nvfp4_kvcache(**arguments(**extra))

    def test_slots_that_do_not_count_are_no_fault(self):
        lengths = torch.full((TOKENS,), 7, dtype=torch.int32)
        flash_mla_with_nvfp4_kvcache(
            **arguments(indices=self.slots(128), topk_length=lengths)
        )
        flash_mla_with_nvfp4_kvcache(**arguments(indices=self.slots(127)))

    def test_it_is_off_unless_asked_for(self, monkeypatch):
        monkeypatch.delenv("SGLANG_SM120_NVFP4_CHECK_INDICES")
        assert not config.checks_indices()


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
        ("^k_cache: ", {"k_cache": torch.zeros(2, 64, 1, 384)}),
        (
            "^k_cache must start at a multiple of 16",
            {
                "k_cache": torch.zeros(2 * 64 * 384 + 8, dtype=torch.uint8)[8:].view(
                    2, 64, 1, 384
                )
            },
        ),
        (
            "^extra_k_cache: .*contiguous",
            {
                "extra_k_cache": torch.zeros(8, 2, 1, 384, dtype=torch.uint8)[::2],
                "extra_indices_in_kvcache": torch.zeros(TOKENS, 1, 64).int(),
            },
        ),
        ("q must be", {"q": torch.zeros(TOKENS, HEADS, 512, dtype=torch.bfloat16)}),
        ("q must be bfloat16", {"q": torch.zeros(TOKENS, 1, HEADS, 512)}),
        ("k_cache", {"k_cache": torch.zeros(2, 64 * 384, dtype=torch.uint8)}),
        (
            "^k_cache: .*contiguous",
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
            "attn_sink is on meta, but q on cpu",
            {"attn_sink": torch.zeros(HEADS, device="meta")},
        ),
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
