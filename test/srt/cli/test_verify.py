"""``sglang-dsv4-nvfp4 verify``: its logic, with PyTorch standing in for the kernels."""

import json
import re

import pytest
import torch

from sglang_dsv4_nvfp4.attention import dispatch, torch_backend
from sglang_dsv4_nvfp4.attention.decision import Decision, Phase
from sglang_dsv4_nvfp4.cli import flashinfer_rounding, operator_table, verify
from sglang_dsv4_nvfp4.cli.main import main
from sglang_dsv4_nvfp4.cli.models import V4_FLASH
from sglang_dsv4_nvfp4.cli.tune import Bench, Timing, shapes_of
from sglang_dsv4_nvfp4.config import Kernel, ScaleRule
from sglang_dsv4_nvfp4.quantize import dequantize_rows, quantize_append, quantize_rows

STAND_IN = Decision(Kernel.TORCH, Phase.PREFILL)


@pytest.fixture(scope="module")
def bench(device):
    return Bench(torch.device("cpu"), pool_bytes=16 << 20)


@pytest.fixture
def elsewhere(device):
    from sglang.srt.runtime_context import override_platform

    with override_platform(is_sm120=False):
        yield


def shapes(tokens=(1, 9), heads=(8,)):
    return list(shapes_of(V4_FLASH, heads, tokens))


def reference(rows, slots, cache):
    quantize_append(rows, slots, cache, ScaleRule.AMAX6)


def check(append):
    return verify.check_append("append", append, ScaleRule.AMAX6, torch.device("cpu"))


def test_a_writer_of_the_same_bytes_passes():
    finding = check(reference)
    assert finding.status == verify.PASSED and "5 batches are equal" in finding.detail


def flip_one_byte(rows, slots, cache):
    reference(rows, slots, cache)
    if len(rows) == 257:
        cache.view(-1)[12345] ^= 1


def take_the_last_of_equal_slots(rows, slots, cache):
    reference(rows.flip(0), slots.flip(0), cache)


def wrap_negative_slots(rows, slots, cache):
    reference(rows, slots % (cache.shape[0] * cache.shape[1]), cache)


def leave_the_padding(rows, slots, cache):
    pads = cache.view(len(cache), -1)[:, 64 * 352 :].view(len(cache), 64, 32)[:, :, 28:]
    before = pads.clone()
    reference(rows, slots, cache)
    pads.copy_(before)


@pytest.mark.parametrize(
    ("append", "said"),
    [
        (flip_one_byte, r"^1 of \d+ bytes differ in a batch of 257$"),
        (take_the_last_of_equal_slots, "differ in a batch of 200"),
        (wrap_negative_slots, "differ in a batch of 200$"),
        (leave_the_padding, "differ in a batch of 1$"),
        (lambda *_: 1 / 0, "1 rows: ZeroDivisionError: division by zero"),
    ],
)
def test_a_writer_of_other_bytes_fails(append, said):
    finding = check(append)
    assert finding.status == verify.FAILED and re.search(said, finding.detail)


def check_kernels(bench, monkeypatch, launch):
    monkeypatch.setattr(dispatch, "launch", launch)
    return list(verify.check_kernels(bench, shapes(), lambda shape: [STAND_IN]))


def test_the_reference_passes_over_all_shapes(bench):
    (finding,) = verify.check_kernels(bench, shapes(), lambda shape: [STAND_IN])
    count = len(shapes())
    assert finding.status == verify.PASSED
    said = f"{count} of {count} shapes; largest error of a head 0.00%, allowed 1.00%"
    assert finding.detail.startswith(said)


def test_inputs_have_gaps_short_lengths_and_a_sink(bench):
    shape = shapes(tokens=(64,))[1]
    made = verify._mixed_inputs(bench, shape)
    for part in (made.main, made.extra):
        assert (part.indices == -1).any() and (part.indices >= 0).any()
        assert 1 <= part.lengths.min() < part.lengths.max() <= part.indices.shape[1]
    assert made.attn_sink.unique().numel() == shape.num_heads


@pytest.mark.parametrize("wrong", ["a scale", "one head", "no number", "an error"])
def test_a_kernel_that_errs_fails_by_name(bench, monkeypatch, wrong):
    right = dispatch.launch

    def launch(inputs, decision):
        output, lse = right(inputs, decision)
        match wrong:
            case "a scale":
                output = output * 1.03
            case "one head":
                output[-1, -1] = 0
            case "no number":
                output[0, 0, 0] = float("nan")
            case "an error":
                raise RuntimeError("an illegal address\nand a trace")
        return output, lse

    (finding,) = check_kernels(bench, monkeypatch, launch)
    assert finding.status == verify.FAILED
    if wrong == "an error":
        assert "; RuntimeError: an illegal address, at " in finding.detail


@pytest.mark.parametrize(
    ("kernel", "phase"),
    [
        (Kernel.SPARSE, Phase.DECODE),
        (Kernel.CAKE, Phase.DECODE),
        (Kernel.CAKE, Phase.PREFILL),
    ],
)
def test_flashinfers_own_rounding_is_allowed_and_no_more(bench, kernel, phase):
    """Where it rounds as it is known to, a kernel passes; with one latent's worth of
    another row it does not."""
    decision = Decision(kernel, phase)
    inputs = verify._mixed_inputs(bench, shapes(tokens=(9,))[1])
    expected, _ = torch_backend.torch_mla(inputs)
    latents, valid = torch_backend.gather(inputs.candidates, slice(None))
    rest = (inputs.attn_sink, inputs.softmax_scale, decision)
    rounded = flashinfer_rounding.attend(inputs.q, latents, valid, *rest)
    allowed = verify.allowed_error(inputs, decision, expected)
    error = verify.largest_error(rounded, expected)
    assert 0.03 < error < allowed < 0.5
    wrong = flashinfer_rounding.attend(inputs.q, latents.roll(1, dims=0), valid, *rest)
    assert verify.largest_error(wrong, expected) > allowed


def test_rounding_to_nvfp4_is_the_caches(generator):
    rows = torch.randn(20, 512, generator=generator).bfloat16()
    stored = dequantize_rows(*quantize_rows(rows))[:, :448].float()
    # The cache multiplies by a reciprocal where this divides.
    same = flashinfer_rounding.round_nvfp4(rows[:, :448].float()) == stored
    assert same.float().mean() > 0.99


def test_a_run_that_dies_leaves_its_report(bench, elsewhere, monkeypatch, tmp_path):
    def die(*arguments):
        yield verify.Finding("a check", verify.PASSED, "some figures")
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(verify.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(verify, "Bench", lambda device: bench)
    monkeypatch.setattr(verify, "examine", die)
    monkeypatch.setattr(verify.machine, "describe_device", lambda: "a GPU")
    assert main(["verify", "--no-times", "--out", str(tmp_path / "report")]) == 1
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] == "FAILED: the checks themselves"
    assert [one["status"] for one in report["findings"]] == ["passed", "failed"]


def test_what_does_not_run_here_is_said(bench, elsewhere, monkeypatch):
    monkeypatch.setattr(verify, "_APPEND_ROWS", (1,))
    findings = {
        one.name: one for one in verify.examine(bench, V4_FLASH, lambda shape: [])
    }
    for name in ("FlashInfer's append", "CUDA graphs", "kernels sparse and cake"):
        assert findings[name].status == verify.NOT_RUN


def test_stale_modules_are_found(elsewhere, monkeypatch):
    from sglang.srt.runtime_context import override_platform

    from sglang_dsv4_nvfp4 import flashinfer_contract

    monkeypatch.setattr(
        flashinfer_contract, "flashinfer_problems", lambda: ["a stale module"]
    )
    assert next(verify._environment()).status == verify.NOT_RUN
    with override_platform(is_sm120=True):
        finding = next(verify._environment())
    assert finding == verify.Finding("FlashInfer's modules", "failed", "a stale module")


ROW = dict(
    heads=64,
    tokens=1024,
    kernel="sparse/prefill",
    us=100.0,
    spread_us=1.0,
    fp8={"FP8's": dict(us=125.0, spread_us=1.0)},
)


@pytest.mark.parametrize(
    ("status", "is_sm120", "verdict"),
    [
        (verify.PASSED, True, "Verified: everything"),
        (verify.PASSED, False, "served on SM120 and SM121 alone"),
        (verify.FAILED, True, "FAILED: a check"),
        (verify.FAILED, False, "FAILED: a check"),
    ],
)
def test_the_report_says_it_in_one_line(tmp_path, status, is_sm120, verdict):
    findings = [verify.Finding("a check", status, "some figures")]
    report = verify.make_report(findings, [ROW], is_sm120)
    page, data = verify.write(tmp_path / "report", report)
    assert verdict in report["verdict"]
    assert json.loads(data.read_text()) == report
    assert f"| a check | {status} | some figures |" in page.read_text()
    assert "| 64 | 1024 | sparse/prefill | 100.0 | 125.0 | +25% |" in page.read_text()


def test_the_table_needs_no_fp8_kernel():
    table = operator_table.markdown([ROW | dict(fp8={})])
    assert table.splitlines()[-1] == "| 64 | 1024 | sparse/prefill | 100.0 |"


def test_rows_are_of_every_shape_and_kernel(device):
    class Times:
        def inputs(self, shape):
            return shape

        def time(self, shape, decision):
            return Timing(us=2.0 * shape.num_tokens, spread_us=0.1)

        def time_run(self, run):
            return Timing(us=3.0 * run.__self__.num_tokens, spread_us=0.2)

    class Baseline:
        def readers(self):
            return {"theirs": lambda shape: shape.__str__}

    rows = list(operator_table.rows(Times(), Baseline(), lambda shape: [STAND_IN]))
    assert [(row["heads"], row["tokens"]) for row in rows] == [
        (heads, tokens)
        for heads in (16, 32, 64, 128)
        for tokens in (1024, 2048, 4096, 8192)
    ]
    for row in rows:
        assert row["us"] == 2 * row["tokens"] and row["problem"] is None
        assert row["fp8"]["theirs"]["us"] == 3 * row["tokens"]


def test_a_kernel_that_fails_leaves_the_others_rows(device):
    class Times:
        def time(self, shape, decision):
            raise RuntimeError("no such kernel image")

    class NoBaseline:
        def readers(self):
            return {}

    rows = list(operator_table.rows(Times(), NoBaseline(), lambda shape: [STAND_IN]))
    assert len(rows) == 16 and all(row["us"] is None for row in rows)
    assert rows[0]["problem"] == "failed (RuntimeError: no such kernel image)"
    assert "| failed |" in operator_table.markdown(rows)


def test_a_machine_without_a_gpu_says_so(monkeypatch, capsys):
    monkeypatch.setattr(verify.torch.cuda, "is_available", lambda: False)
    assert main(["verify"]) == 1
    assert "needs a CUDA device" in capsys.readouterr().err


def test_a_report_needs_a_folder_that_is_there(capsys):
    with pytest.raises(SystemExit):
        main(["verify", "--out", "/no/such/folder/report"])
    assert "/no/such/folder is no directory" in capsys.readouterr().err
