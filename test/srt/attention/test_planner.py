"""Decisions: asked once a shape class, bounded, and never during capture."""

from types import SimpleNamespace

import pytest
import torch

from sglang_dsv4_nvfp4.attention import planner as planner_module
from sglang_dsv4_nvfp4.attention.inputs import AttentionShape
from sglang_dsv4_nvfp4.attention.planner import Decision, Planner, shape_class

CPU = torch.device("cpu")
SHAPE = AttentionShape(
    num_tokens=8,
    num_heads=64,
    topk=128,
    page_size=64,
    extra_topk=512,
    extra_page_size=64,
)


@pytest.fixture
def asked(monkeypatch):
    """FlashInfer's planner replaced by one that keeps its questions."""
    from flashinfer.mla._sparse_mla_sm120 import _dsv4_nvfp4_policy as policy

    questions = []

    def plan(**question):
        questions.append(question)
        prefill = question["num_tokens"] > 64
        variant = policy.NVFP4KernelVariant
        return SimpleNamespace(
            variant=variant.PREFILL_STREAMING if prefill else variant.DECODE_SPLITK,
            cpb=0 if prefill else 3,
        )

    monkeypatch.setattr(policy, "plan_nvfp4_sparse_mla_sm120", plan)
    return questions


def test_a_shape_is_asked_for_once(asked):
    planner = Planner()
    first = planner.plan(SHAPE, CPU)
    assert first == Decision(use_prefill=False, chunks_per_block=3)
    assert planner.plan(SHAPE, CPU) is first
    assert len(asked) == 1


def test_the_question_carries_the_whole_shape(asked):
    Planner().plan(SHAPE._replace(has_attn_sink=True, has_topk_length=True), CPU)
    assert asked == [
        dict(
            num_tokens=8,
            num_heads=64,
            topk=128,
            primary_page_size=64,
            device=CPU,
            extra_topk=512,
            extra_page_size=64,
            has_topk_length=True,
            has_extra_topk_length=False,
            has_attn_sink=True,
        )
    ]


def test_all_prefill_batches_are_one_class(asked):
    planner = Planner()
    for tokens in (65, 66, 1000, 8192):
        decision = planner.plan(SHAPE._replace(num_tokens=tokens), CPU)
        assert decision.use_prefill
    assert len(planner) == len(asked) == 1
    assert shape_class(SHAPE._replace(num_tokens=64)).num_tokens == 64


def test_tuning_asks_anew_and_its_last_answer_stands(asked, monkeypatch):
    planner = Planner()
    planner.plan(SHAPE, CPU)
    monkeypatch.setattr(planner_module, "_is_tuning", lambda: True)
    planner.plan(SHAPE, CPU)
    assert len(asked) == 2
    monkeypatch.setattr(planner_module, "_is_tuning", lambda: False)
    planner.plan(SHAPE, CPU)
    assert len(asked) == 2 and len(planner) == 1


def test_flashinfers_tuning_context_is_seen():
    from flashinfer.autotuner import autotune

    assert not planner_module._is_tuning()
    with autotune(True):
        assert planner_module._is_tuning()


def test_the_memo_is_bounded_and_forgets_the_least_used(asked):
    planner = Planner(max_decisions=3)
    shapes = [SHAPE._replace(num_tokens=tokens) for tokens in (1, 2, 3, 4)]
    for shape in shapes[:3]:
        planner.plan(shape, CPU)
    planner.plan(shapes[0], CPU)
    planner.plan(shapes[3], CPU)
    assert len(planner) == 3
    asked.clear()
    planner.plan(shapes[0], CPU)
    assert asked == []
    planner.plan(shapes[1], CPU)
    assert len(asked) == 1


def test_an_unwarmed_shape_is_an_error_under_capture(asked, monkeypatch):
    planner = Planner()
    planner.plan(SHAPE, CPU)
    monkeypatch.setattr(planner_module, "is_capturing", lambda device: True)
    assert planner.plan(SHAPE, CPU).chunks_per_block == 3
    with pytest.raises(RuntimeError, match="9 query tokens.*before CUDA graph capture"):
        planner.plan(SHAPE._replace(num_tokens=9), CPU)


def test_a_shape_that_nothing_serves_is_named(monkeypatch):
    from flashinfer.mla._sparse_mla_sm120 import _dsv4_nvfp4_policy as policy

    monkeypatch.setattr(policy, "plan_nvfp4_sparse_mla_sm120", lambda **_: None)
    with pytest.raises(ValueError, match="top-k 192 on pages of 64") as refusal:
        Planner().plan(SHAPE._replace(topk=192), CPU)
    assert "128 or 512" in str(refusal.value)
