"""Which kernel a shape gets, measured or not."""

import pytest
import torch

from sglang_dsv4_nvfp4.attention import flashinfer_backend, policy, profile
from sglang_dsv4_nvfp4.attention.decision import Decision, Phase
from sglang_dsv4_nvfp4.attention.inputs import AttentionShape
from sglang_dsv4_nvfp4.attention.profile import Profile, Row
from sglang_dsv4_nvfp4.config import Kernel
from sglang_dsv4_nvfp4.machine import versions

CPU = torch.device("cpu")
SPARSE_DECODE = Decision(Kernel.SPARSE, Phase.DECODE, 0)
SPARSE_PREFILL = Decision(Kernel.SPARSE, Phase.PREFILL, 0)


def shape(num_tokens, num_heads=64, extra_topk=512, topk=128):
    return AttentionShape(
        num_tokens=num_tokens,
        num_heads=num_heads,
        topk=topk,
        page_size=64,
        extra_topk=extra_topk,
        extra_page_size=64 if extra_topk else 0,
    )


@pytest.fixture(autouse=True)
def sm120(device, monkeypatch, tmp_path):
    """FlashInfer's families on offer, and no profile of this machine's.

    FlashInfer's "sparse" planner would compile its module to answer.
    """

    def sparse_decisions(asked, device):
        if asked.topk not in (128, 512):
            return []
        return [SPARSE_DECODE if asked.num_tokens <= 64 else SPARSE_PREFILL]

    monkeypatch.setattr(flashinfer_backend, "sparse_decisions", sparse_decisions)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    policy._warn_of_slow_kernel.cache_clear()


def decide(asked, kernel=Kernel.AUTO):
    return policy.decide(asked, CPU, kernel)


@pytest.mark.parametrize("num_tokens", [1, 64, 65, 8192])
@pytest.mark.parametrize("num_heads", [64, 128])
def test_full_heads_get_the_hand_written_kernels(num_tokens, num_heads):
    assert decide(shape(num_tokens, num_heads)).kernel is Kernel.SPARSE


@pytest.mark.parametrize("num_heads", [16, 32])
def test_few_heads_prefill_by_the_kernels_made_for_them(num_heads):
    decision = decide(shape(4096, num_heads))
    assert decision[:2] == (Kernel.CAKE, Phase.PREFILL)
    assert decide(shape(8, num_heads)).kernel is Kernel.SPARSE


def test_widths_that_sparse_refuses_go_to_cake():
    assert decide(shape(8, extra_topk=0, topk=192)).kernel is Kernel.CAKE
    assert decide(shape(8192, extra_topk=0, topk=256)).kernel is Kernel.CAKE


def test_only_a_known_slow_kernel_is_said_once(caplog):
    """V4-Pro's 128 + 1024 are more chunks than a cake prefill holds."""
    for num_tokens in (1024, 8192):
        assert decide(shape(num_tokens, 16, 1024))[:2] == SPARSE_PREFILL[:2]
    (record,) = caplog.records
    assert "16 heads" in record.getMessage() and "tune" in record.getMessage()


def test_other_devices_get_triton():
    from sglang.srt.runtime_context import override_platform

    with override_platform(is_sm120=False):
        assert decide(shape(8)).kernel is Kernel.TRITON


@pytest.mark.parametrize(
    "kernel", [Kernel.SPARSE, Kernel.CAKE, Kernel.TRITON, Kernel.TORCH]
)
def test_a_named_kernel_is_taken(kernel):
    assert decide(shape(4096, 16), kernel).kernel is kernel


def test_a_shape_that_the_named_kernel_does_not_serve():
    with pytest.raises(ValueError, match=r"no sparse kernel serves .*top-k 192.*auto"):
        decide(shape(8, extra_topk=0, topk=192), Kernel.SPARSE)
    with pytest.raises(ValueError, match=r"no cake kernel serves .*24 heads"):
        decide(shape(8, num_heads=24), Kernel.CAKE)


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """A profile of this device in which triton wins at 64 tokens and cake above."""
    path = tmp_path / "profile.json"
    monkeypatch.setenv("SGLANG_SM120_NVFP4_PROFILE", str(path))
    made = Profile(device=profile.device_name(), versions=versions())
    for tokens, times in (
        (64, (30.0, 30.0, 20.0, 90.0, 10.0)),
        (1024, (40.0, 40.0, 30.0, 90.0, 400.0)),
    ):
        decisions = (
            SPARSE_DECODE,
            SPARSE_PREFILL,
            Decision(Kernel.CAKE, Phase.PREFILL),
            Decision(Kernel.CAKE, Phase.DECODE),
            # Its phase is whether it splits, and no line of its own.
            Decision(Kernel.TRITON, Phase.DECODE if tokens == 64 else Phase.PREFILL),
        )
        for decision, us in zip(decisions, times, strict=True):
            made.add(Row(shape(tokens), decision, us, 0.1))
    made.write(path)
    return made


def test_a_profile_decides(measured):
    assert decide(shape(64)).kernel is Kernel.TRITON
    assert decide(shape(1024)).kernel is Kernel.CAKE


def test_between_measurements_the_expected_time_decides(measured):
    """Triton's line from 10 to 400 us crosses cake's, from 20 to 30, near 100."""
    assert decide(shape(80)).kernel is Kernel.TRITON
    assert decide(shape(256)).kernel is Kernel.CAKE
    assert decide(shape(32768)).kernel is Kernel.CAKE


def test_a_profile_says_nothing_of_other_heads(measured):
    assert decide(shape(1024, num_heads=32)).kernel is Kernel.CAKE
    assert decide(shape(8, num_heads=128)).kernel is Kernel.SPARSE


def test_a_named_kernel_wins_over_the_profile(measured):
    assert decide(shape(1024), Kernel.SPARSE).kernel is Kernel.SPARSE


class TestNoKernelIsJudgedByAnotherBatchThanItsRivals:
    """Triton takes 1.5 times cake's time everywhere, and one of both is missing."""

    DECISIONS = (
        Decision(Kernel.CAKE, Phase.PREFILL),
        Decision(Kernel.TRITON, Phase.PREFILL),
    )

    def profile(self, *missing, failed=()):
        made = Profile(device="here", versions={})
        for tokens in (1024, 4096, 8192):
            for decision, factor in zip(self.DECISIONS, (1.0, 1.5), strict=True):
                key = (decision.kernel, tokens)
                us = None if key in failed else factor * tokens
                if key not in missing:
                    made.add(
                        Row(shape(tokens), decision, us, None if us is None else 0)
                    )
        return made

    @pytest.mark.parametrize("num_tokens", [512, 3000, 6000, 8192, 16384])
    @pytest.mark.parametrize("kernel", [Kernel.CAKE, Kernel.TRITON])
    @pytest.mark.parametrize("tokens", [4096, 8192])
    def test_an_interrupted_run(self, kernel, tokens, num_tokens):
        made = self.profile((kernel, tokens))
        assert made.best(shape(num_tokens), self.DECISIONS).kernel is Kernel.CAKE

    def test_a_kernel_that_failed_is_out_there_and_in_between(self):
        made = self.profile(failed={(Kernel.CAKE, 8192)})
        for num_tokens, kernel in (
            (4096, Kernel.CAKE),
            (4100, Kernel.TRITON),
            (8192, Kernel.TRITON),
            (16384, Kernel.TRITON),
        ):
            assert made.best(shape(num_tokens), self.DECISIONS).kernel is kernel

    def test_where_all_failed_the_profile_says_nothing(self):
        failed = {(kernel, 8192) for kernel in (Kernel.CAKE, Kernel.TRITON)}
        assert self.profile(failed=failed).best(shape(8192), self.DECISIONS) is None

    def test_a_kernel_that_was_never_measured_silences_it(self):
        never = [(Kernel.TRITON, tokens) for tokens in (1024, 4096, 8192)]
        assert self.profile(*never).best(shape(2048), self.DECISIONS) is None


def test_a_split_batch_of_gigabytes_is_not_offered():
    wide = shape(8192, 64, 4096)._replace(extra_page_size=2)
    kinds = {made[:2] for made in policy.eligible(wide, CPU, Kernel.CAKE)}
    assert (Kernel.CAKE, Phase.DECODE) not in kinds


def test_more_tokens_than_a_grid_holds():
    with pytest.raises(ValueError, match="no triton kernel serves.*65535 tokens"):
        decide(shape(70000), Kernel.TRITON)


def test_the_launch_is_the_present_one_not_the_profiles(measured):
    """Chunks may have changed with the GPU's state or FlashInfer's profile."""
    made = Decision(Kernel.CAKE, Phase.PREFILL, head_tiles=4)
    assert measured.best(shape(1024), [SPARSE_PREFILL, made]) is made
