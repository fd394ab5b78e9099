"""Decisions: made once a shape class, bounded, and never during capture."""

import pytest
import torch

from sglang_dsv4_nvfp4.attention import planner as planner_module
from sglang_dsv4_nvfp4.attention.decision import Decision, Phase, shape_class
from sglang_dsv4_nvfp4.attention.inputs import AttentionShape
from sglang_dsv4_nvfp4.attention.planner import Planner
from sglang_dsv4_nvfp4.config import Kernel

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
    """The policy replaced by one that keeps its questions and answers differently
    each time."""
    questions = []

    def decide(shape, device, kernel):
        questions.append((shape, device, kernel))
        return Decision(Kernel.SPARSE, Phase.DECODE, len(questions))

    monkeypatch.setattr(planner_module.policy, "decide", decide)
    return questions


def plan(planner, shape=SHAPE, kernel=Kernel.AUTO):
    return planner.plan(shape, CPU, kernel)


def test_a_decision_is_made_once(asked):
    planner = Planner()
    first = plan(planner)
    for _ in range(3):
        assert plan(planner) is first
    assert len(asked) == 1


def test_the_question_is_the_class_the_device_and_the_kernel(asked):
    shape = SHAPE._replace(num_tokens=65, has_attn_sink=True, has_topk_length=True)
    plan(Planner(), shape, Kernel.CAKE)
    assert asked == [(shape._replace(num_tokens=80), CPU, Kernel.CAKE)]


def test_batches_that_graphs_capture_are_classes_of_their_own():
    for tokens in range(1, 65):
        shape = SHAPE._replace(num_tokens=tokens)
        assert shape_class(shape) == shape


def test_larger_batches_share_classes_that_hold_them():
    classes = {
        shape_class(SHAPE._replace(num_tokens=tokens)).num_tokens
        for tokens in range(65, 32769)
    }
    assert len(classes) == 4 * 9
    for tokens in (65, 80, 81, 1000, 8192, 8193):
        held = shape_class(SHAPE._replace(num_tokens=tokens)).num_tokens
        assert tokens <= held < tokens * 1.25


def test_64_tokens_and_65_are_apart(asked):
    planner = Planner()
    plan(planner, SHAPE._replace(num_tokens=64))
    plan(planner, SHAPE._replace(num_tokens=65))
    assert len(planner) == len(asked) == 2


def test_flashinfers_tuning_asks_anew_and_its_last_answer_stands(asked):
    from flashinfer.autotuner import autotune

    planner = Planner()
    plan(planner)
    with autotune(True):
        retuned = plan(planner)
    assert len(asked) == 2 and retuned.chunks == 2
    assert plan(planner) is retuned and len(planner) == 1


def test_other_kernels_are_not_retuned(monkeypatch):
    from flashinfer.autotuner import autotune

    made = iter([Decision(Kernel.CAKE, Phase.DECODE)])
    monkeypatch.setattr(planner_module.policy, "decide", lambda *_: next(made))
    planner = Planner()
    first = plan(planner)
    with autotune(True):
        assert plan(planner) is first


def test_an_unwarmed_shape_is_an_error_under_capture(asked, monkeypatch):
    planner = Planner()
    known = plan(planner)
    monkeypatch.setattr(planner_module, "is_capturing", lambda device: True)
    assert plan(planner) is known
    with pytest.raises(RuntimeError, match="9 query tokens.*before CUDA graph"):
        plan(planner, SHAPE._replace(num_tokens=9))
    assert len(asked) == 1


def test_a_decision_is_said_at_debug_level(asked, caplog):
    with caplog.at_level("DEBUG", logger=planner_module.__name__):
        plan(Planner())
    (record,) = caplog.records
    assert "8 query tokens" in record.getMessage()
    assert "sparse/decode, chunks 1" in record.getMessage()
