"""What this package asks of FlashInfer, held against the installed one. No GPU.

First the calls that we make, bound against the real signatures; then the compiled
sm_120a module's own answers about the shapes that DeepSeek-V4 needs.
"""

import inspect
import math
from types import SimpleNamespace

import pytest
import torch
from support.flashinfer_host import MAX_SHARED_BYTES, ask

from sglang_dsv4_nvfp4 import flashinfer_contract, layout, machine, signatures
from sglang_dsv4_nvfp4.arena import Arena
from sglang_dsv4_nvfp4.attention import dispatch, flashinfer_backend, scratch
from sglang_dsv4_nvfp4.attention.decision import (
    DECODE_MAX_TOKENS,
    Decision,
    Phase,
    shape_class,
)
from sglang_dsv4_nvfp4.attention.inputs import AttentionShape, make_inputs
from sglang_dsv4_nvfp4.config import Kernel
from sglang_dsv4_nvfp4.store import staged

APPEND, OP, PLAN, CAKE_DECODE, CAKE_PREFILL, *_ = (
    flashinfer_contract.FLASHINFER_ENTRY_POINTS
)
CPU = torch.device("cpu")

# c128 has one entry per 128 tokens of context: up to 8192 at a million tokens.
C128_WIDTHS = (64, 512, 4096, 8192)
FLASH_EXTRAS = [(0, 0), (512, 64), *((width, 2) for width in C128_WIDTHS)]
PRO_EXTRAS = [(0, 0), (1024, 64), *((width, 2) for width in C128_WIDTHS)]


def shape(num_heads, extra, num_tokens=1, topk=128):
    return AttentionShape(
        num_tokens=num_tokens,
        num_heads=num_heads,
        topk=topk,
        page_size=layout.MAX_KERNEL_PAGE_SIZE,
        extra_topk=extra[0],
        extra_page_size=extra[1],
    )


# V4-Flash whole and at attention TP 2 and 4; V4-Pro.
SERVED = [
    shape(heads, extra)
    for heads, extras in (
        (64, FLASH_EXTRAS),
        (32, FLASH_EXTRAS),
        (16, FLASH_EXTRAS),
        (128, PRO_EXTRAS),
    )
    for extra in extras
]
# The DSpark draft's widths: the planner must hear no, or its error would be a lie.
NOT_SERVED = [shape(64, (0, 0), topk=topk) for topk in (192, 256)]
# At the boundary either kernel may be asked for.
_BOUNDARY = [(served._replace(num_tokens=64), True) for served in SERVED]
PLANNED = _BOUNDARY + [
    (served._replace(num_tokens=tokens), prefill)
    for served in SERVED
    for tokens, prefill in (
        (1, False),
        (8, False),
        (64, False),
        (65, True),
        (8192, True),
    )
]


class Recorder:
    """Stands in for a FlashInfer function and keeps how it was called."""

    def __init__(self, result=None):
        self.result = result
        self.calls = []

    def __call__(self, *args, **kwargs):
        self.calls.append((args, kwargs))
        return self.result


@pytest.fixture
def record(monkeypatch):
    def replace(target, result=None):
        real = signatures.resolve(target)
        module, name = target.rsplit(".", 1)
        recorder = Recorder(result)
        monkeypatch.setattr(signatures.resolve(module), name, recorder)
        recorder.real = inspect.signature(real)
        return recorder

    return replace


def planned(variant_name, cpb):
    from flashinfer.mla._sparse_mla_sm120 import _dsv4_nvfp4_policy as policy

    return SimpleNamespace(variant=policy.NVFP4KernelVariant[variant_name], cpb=cpb)


def inputs(num_tokens, with_extra=True):
    extra = {}
    if with_extra:
        extra = {
            "extra_k_cache": torch.zeros(8, 2, 1, 384, dtype=torch.uint8),
            "extra_indices": torch.zeros(num_tokens, 1, 192, dtype=torch.int32),
            "extra_topk_length": torch.zeros(num_tokens, dtype=torch.int32),
        }
    return make_inputs(
        q=torch.zeros(num_tokens, 1, 64, 512, dtype=torch.bfloat16),
        k_cache=torch.zeros(2, 256, 1, 384, dtype=torch.uint8),
        indices=torch.zeros(num_tokens, 1, 128, dtype=torch.int32),
        topk_length=torch.zeros(num_tokens, dtype=torch.int32),
        attn_sink=torch.zeros(64),
        softmax_scale=None,
        **{
            **dict(extra_k_cache=None, extra_indices=None, extra_topk_length=None),
            **extra,
        },
    )


def test_signatures_are_the_ones_written_down():
    assert flashinfer_contract.flashinfer_problems() == []


def test_flashinfer_is_the_version_that_sglang_pins():
    pin = flashinfer_contract.sglang_flashinfer_pin()
    assert pin == machine.distribution_version("flashinfer-python")


def test_the_append_call_binds(record, monkeypatch, generator):
    recorder = record(APPEND)
    monkeypatch.setattr(staged, "flashinfer_writes", lambda device: True)
    cache = torch.zeros(4, 64, 384, dtype=torch.uint8)
    rows = torch.zeros(6, 1024).bfloat16()[:, 512:]
    slots = torch.zeros(12, dtype=torch.int32)[::2]
    staged.append(rows, slots, cache)
    ((args, kwargs),) = recorder.calls
    bound = recorder.real.bind(*args, **kwargs).arguments
    assert bound["cache"] is cache
    assert bound["latent_kv"].is_contiguous() and bound["slot_mapping"].is_contiguous()


@pytest.mark.parametrize("with_extra", [True, False])
@pytest.mark.parametrize("prefill", [True, False])
def test_the_sparse_plan_and_call_bind(record, prefill, with_extra):
    variant = "PREFILL_STREAMING" if prefill else "DECODE_SPLITK"
    plan, op = record(PLAN, planned(variant, 0 if prefill else 2)), record(OP)
    call = inputs(70 if prefill else 3, with_extra)
    decision, *_ = flashinfer_backend.sparse_decisions(call.shape, CPU)
    output, lse = dispatch.launch(call, decision)

    ((args, kwargs),) = plan.calls
    plan.real.bind(*args, **kwargs)
    bound = check_call(op, call, output, lse, with_extra)
    assert bound["use_prefill"] is prefill
    assert bound["chunks_per_block_override"] == (0 if prefill else 2)
    if prefill:
        assert bound["mid_out"] is None and bound["mid_lse"] is None
    else:
        check_partials(bound, call, 2 + (3 if with_extra else 0))


@pytest.mark.parametrize("with_extra", [True, False])
@pytest.mark.parametrize(
    "decision",
    [
        Decision(Kernel.CAKE, Phase.PREFILL, head_tiles=2),
        Decision(Kernel.CAKE, Phase.DECODE, chunks=1),
        Decision(Kernel.CAKE, Phase.DECODE, chunks=3, head_tiles=2),
    ],
    ids=str,
)
def test_the_cake_calls_bind(record, decision, with_extra):
    op = record(CAKE_PREFILL if decision.phase is Phase.PREFILL else CAKE_DECODE)
    call = inputs(3, with_extra)
    output, lse = dispatch.launch(call, decision)
    bound = check_call(op, call, output, lse, with_extra)
    assert bound["head_tiles"] == decision.head_tiles
    if decision.phase is Phase.DECODE:
        assert bound["num_splits"] == decision.chunks
    if decision.chunks > 1:
        check_partials(bound, call, decision.chunks)
    else:
        assert bound.get("mid_out") is None and bound.get("mid_lse") is None


def check_call(op, call, output, lse, with_extra):
    ((args, kwargs),) = op.calls
    bound = op.real.bind(*args, **kwargs).arguments
    tokens = call.q.shape[0]
    assert bound["q"].shape == (tokens, 64, 512)
    assert bound["kv_cache"].shape == (8, 64, 384)
    assert bound["indices"].shape == (tokens, 128)
    assert bound["output"] is output and bound["out_lse"] is lse
    assert bound["lse_scale"] == pytest.approx(math.log(2))
    if with_extra:
        assert bound["extra_kv_cache"].shape == (8, 2, 384)
        assert bound["extra_indices"].shape == (tokens, 192)
    else:
        assert bound["extra_kv_cache"] is None and bound["extra_indices"] is None
    for value in bound.values():
        assert not isinstance(value, torch.Tensor) or value.is_contiguous()
    return bound


def check_partials(bound, call, splits):
    tokens = call.q.shape[0]
    assert bound["mid_out"].shape == (tokens, 64, splits, 512)
    assert bound["mid_lse"].shape == (tokens, 64, splits)


@pytest.mark.parametrize(
    ("target", "decision"),
    [
        (OP, Decision(Kernel.SPARSE, Phase.DECODE, 2)),
        (CAKE_DECODE, Decision(Kernel.CAKE, Phase.DECODE, 5)),
    ],
)
def test_scratch_is_the_arenas_and_stays(record, monkeypatch, target, decision):
    op = record(target)
    monkeypatch.setattr(scratch, "arena", Arena("test", buckets_per_octave=4))
    # With five splits, batches of 5 and 6 share a bucket.
    outputs = []
    for tokens in (5, 64, 5, 6):
        output, _ = dispatch.launch(inputs(tokens), decision)
        outputs.append(output)
    pointers = [kwargs["mid_out"].data_ptr() for _, kwargs in op.calls]
    assert pointers[0] == pointers[2] != pointers[1]
    assert {output.data_ptr() for output in outputs}.isdisjoint(pointers)


def test_cake_serves_what_sparse_does_not():
    for question in NOT_SERVED:
        decisions = flashinfer_backend.cake_decisions(question, CPU)
        assert {decision.phase for decision in decisions} == set(Phase)


@pytest.mark.parametrize("heads", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("extra", FLASH_EXTRAS + PRO_EXTRAS)
def test_cake_decisions_keep_its_limits(heads, extra):
    """Chunks of a prefill, and 32-bit offsets into partial results."""
    for tokens in (1, 64, 65, 8192, 32768):
        question = shape_class(shape(heads, extra, tokens))
        decisions = flashinfer_backend.cake_decisions(question, CPU)
        chunks = flashinfer_backend.num_chunks(question)
        phases = [decision.phase for decision in decisions]
        assert (Phase.PREFILL in phases) == (chunks <= 16 and heads >= 16)
        for decision in decisions:
            if decision.phase is Phase.DECODE:
                assert math.ceil(chunks / decision.chunks) <= 16
                rows = question.num_tokens * heads * decision.chunks
                assert rows * layout.LATENT_DIM <= 2**31


def test_cakes_own_choice_comes_first():
    from flashinfer import mla

    for tokens in (1, 8, 9, 64, 1024):
        question = shape(64, (512, 64), tokens)
        first, *_ = flashinfer_backend.cake_decisions(question, CPU)
        assert first.phase == mla.cake_sparse_mla_sm120_dsv4_nvfp4_select_kernel(
            num_tokens=tokens,
            num_heads=64,
            topk=128,
            extra_topk=512,
            num_sms=flashinfer_backend.SM_COUNT_WITHOUT_DEVICE,
        )


def test_cake_chunks_are_counted_as_it_counts_them():
    from flashinfer import mla

    for extra in FLASH_EXTRAS + [(1, 2), (65, 2)]:
        question = shape(64, extra)
        assert flashinfer_backend.num_chunks(
            question
        ) == mla.cake_sparse_mla_sm120_dsv4_nvfp4_num_chunks(128, extra[0])


@pytest.fixture(scope="module")
def answers():
    return ask(
        {
            "supports": [question._asdict() for question in SERVED + NOT_SERVED],
            "plans": [
                {**planned._asdict(), "prefill": prefill}
                for planned, prefill in PLANNED
            ],
            "attention_exports": [
                "sparse_mla_sm120_nvfp4_decode",
                "sparse_mla_sm120_nvfp4_prefill",
            ],
            "cache_exports": ["sparse_mla_sm120_nvfp4_quantize_append"],
            "cake_exports": [
                "cake_sparse_mla_sm120_dsv4_nvfp4_decode",
                "cake_sparse_mla_sm120_dsv4_nvfp4_prefill",
            ],
        }
    )


def test_compiled_modules_have_the_functions(answers):
    assert answers["exports"] == dict.fromkeys(answers["exports"], True)
    assert len(answers["exports"]) == 5


def test_compiled_format_is_ours(answers):
    info = answers["format"]
    assert info["bytes_per_token"] == layout.BYTES_PER_TOKEN
    assert info["query_dim"] == info["value_dim"] == layout.LATENT_DIM
    assert info["page_size"] == layout.MAX_KERNEL_PAGE_SIZE
    assert {64, 2} <= set(info["extra_page_sizes"])


def test_compiled_kernels_serve_the_models(answers):
    served = answers["supports"][: len(SERVED)]
    refused = [str(s) for s, yes in zip(SERVED, served, strict=True) if not yes]
    assert refused == []


def test_compiled_kernels_refuse_what_the_error_says_they_refuse(answers):
    assert answers["supports"][len(SERVED) :] == [False] * len(NOT_SERVED)


def test_plans_fit_an_sm120_and_our_scratch(answers):
    for (question, prefill), plan in zip(PLANNED, answers["plans"], strict=True):
        assert plan["shared_bytes"] <= MAX_SHARED_BYTES, question
        if prefill:
            # Single pass: the kernel asks for no scratch, and we give it none.
            assert plan["partial_bytes"] == 0 and plan["merge"] == "direct"
            assert plan["implementation"] == "dsv4_nvfp4_prefill"
            continue
        assert question.num_tokens <= DECODE_MAX_TOKENS
        rows = (
            question.num_tokens
            * question.num_heads
            * flashinfer_backend.num_chunks(question)
        )
        assert plan["partial_bytes"] <= rows * layout.LATENT_DIM * 2
        assert plan["lse_bytes"] <= rows * 4


def test_decode_limit_is_flashinfers():
    from flashinfer.mla._sparse_mla_sm120 import _policy

    assert _policy._DECODE_MAX_TOKENS == DECODE_MAX_TOKENS
