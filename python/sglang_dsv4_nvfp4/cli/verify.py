"""``sglang-dsv4-nvfp4 verify``: does everything compute what it should, on this GPU?

On an SM120 it is what this project could not run itself: FlashInfer's writer against the
reference's bytes, each kernel against PyTorch, CUDA graphs, and the kernels' times. On
another CUDA device it does what runs there, and says what did not. The report is meant to
be attached to an issue.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from sglang_dsv4_nvfp4 import flashinfer_contract, machine
from sglang_dsv4_nvfp4.attention import dispatch, torch_backend
from sglang_dsv4_nvfp4.attention.decision import Decision
from sglang_dsv4_nvfp4.attention.inputs import (
    AttentionShape,
    CandidateSet,
    SparseMLAInputs,
)
from sglang_dsv4_nvfp4.cli import flashinfer_rounding, operator_table
from sglang_dsv4_nvfp4.cli.models import V4_PRO, ModelFacts, model_facts
from sglang_dsv4_nvfp4.cli.operator_table import Eligible, eligible_on
from sglang_dsv4_nvfp4.cli.sandbox import environment_scope, require_cuda
from sglang_dsv4_nvfp4.cli.tune import Bench, shapes_of
from sglang_dsv4_nvfp4.config import SCALE_RULE_ENV, Kernel, ScaleRule
from sglang_dsv4_nvfp4.layout import BYTES_PER_TOKEN, MAX_KERNEL_PAGE_SIZE
from sglang_dsv4_nvfp4.quantize import quantize_append
from sglang_dsv4_nvfp4.store.self_check import check_rows

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
# One decode, a full one, both sides of FlashInfer's boundary, and prefills.
TOKENS = (1, 8, 64, 65, 300, 2048)
# Those that a graph of each kernel is captured at.
_GRAPH_TOKENS = (8, 300)
_ATTENTION_TP = (1, 2, 4)
# Of one head's output, in the 2-norm. Weights and outputs are rounded to BF16, 2 ** -9 at
# each step; a wrong scale, slot or nibble is off by tens of percent.
_MAX_ERROR = 0.01
# FlashInfer's kernels round more; the estimate of it is good to this factor.
_ESTIMATE_FACTOR = 1.5
_ESTIMATE_TOKENS = 64
# More rows than FlashInfer's writer settles in one launch, and fewer.
_APPEND_ROWS = (1, 200, 256, 257, 2048)

Append = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True)
class Finding:
    """One check, what came of it, and its figures in words."""

    name: str
    status: str
    detail: str


def run(args: argparse.Namespace) -> int:
    """Check, print, and write the report; 0 where nothing failed."""
    try:
        require_cuda("verify")
        model = model_facts(args.model)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    bench = Bench(torch.device("cuda"))
    findings = []
    try:
        for finding in examine(bench, model, eligible_on(bench.device)):
            print(line_of(finding), flush=True)
            findings.append(finding)
    # Whatever a GPU ends it with, what was found is the report.
    except Exception as error:
        findings.append(Finding("the checks themselves", FAILED, _said(error)))
        print(line_of(findings[-1]), flush=True)
    write(args.out, make_report(findings, [], _is_sm120()))
    rows = [] if args.no_times else operator_table.measure(bench)
    report = make_report(findings, rows, _is_sm120())
    paths = write(args.out, report)
    print(f"\n{report['verdict']}\nwritten to {' and '.join(map(str, paths))}")
    return int(any(finding.status == FAILED for finding in findings))


def _is_sm120() -> bool:
    from sglang.srt.runtime_context import get_platform

    return get_platform().is_sm120


def examine(bench: Bench, model: ModelFacts, eligible: Eligible) -> Iterator[Finding]:
    """Every check in turn."""
    yield from _environment()
    yield from _writers(bench.device)
    heads = [V4_PRO.num_heads, *(model.num_heads // size for size in _ATTENTION_TP)]
    shapes = list(shapes_of(model, heads, TOKENS))
    yield from check_kernels(bench, shapes, eligible)
    yield from check_graphs(bench, shapes, eligible)
    if not _is_sm120():
        yield Finding(
            "kernels sparse and cake",
            NOT_RUN,
            "FlashInfer's NVFP4 kernels exist for SM120 and SM121 alone",
        )


def _environment() -> Iterator[Finding]:
    problems = flashinfer_contract.flashinfer_problems()
    count = len(flashinfer_contract.FLASHINFER_ENTRY_POINTS)
    if problems:
        # Off SM120 nothing of FlashInfer is called.
        status = FAILED if _is_sm120() else NOT_RUN
        yield Finding("FlashInfer's modules", status, "; ".join(problems))
    else:
        yield Finding(
            "FlashInfer's modules", PASSED, f"{count} entry points, none stale"
        )


def _writers(device: torch.device) -> Iterator[Finding]:
    from sglang_dsv4_nvfp4.store import fused, staged

    for rule in ScaleRule:
        with environment_scope(SCALE_RULE_ENV, rule):
            yield check_append(f"fused store, {rule}", fused.append, rule, device)
    if not staged.flashinfer_writes(device):
        yield Finding(
            "FlashInfer's append", NOT_RUN, "it exists for SM100 and SM120 alone"
        )
        return
    with environment_scope(SCALE_RULE_ENV, ScaleRule.AMAX6):
        yield check_append(
            "FlashInfer's append", staged.append, ScaleRule.AMAX6, device
        )


def check_append(
    name: str, append: Append, rule: ScaleRule, device: torch.device
) -> Finding:
    """Every byte that ``append`` leaves in pages, against the reference quantizer.

    Batches hold rows of every magnitude, slots that are skipped, and equal slots.
    """
    generator = torch.Generator().manual_seed(0)
    compared = 0
    for count in _APPEND_ROWS:
        rows = check_rows().repeat(-(-count // 256), 1)[:count].to(device)
        num_pages = -(-count // MAX_KERNEL_PAGE_SIZE) + 1
        num_slots = num_pages * MAX_KERNEL_PAGE_SIZE
        slots = torch.randperm(num_slots, generator=generator)[:count]
        slots[3::7] = -1
        slots[5::11] = num_slots
        if count > 100:
            slots[90:99] = slots[81]
        # SGLang has slots of both widths.
        slots = (slots.int() if count % 2 else slots).to(device)
        shape = (num_pages, MAX_KERNEL_PAGE_SIZE, BYTES_PER_TOKEN)
        # Pages hold anything before they are written.
        before = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        expected, actual = before.to(device), before.to(device, copy=True)
        quantize_append(rows, slots, expected, rule)
        try:
            append(rows, slots, actual)
        # What a kernel may fail with depends on compilers and drivers.
        except Exception as error:
            return Finding(name, FAILED, f"{count} rows: {_said(error)}")
        different = int((actual != expected).sum())
        if different:
            return Finding(
                name,
                FAILED,
                f"{different} of {expected.numel()} bytes differ in a batch of {count}",
            )
        compared += expected.numel()
    return Finding(
        name, PASSED, f"{compared:,} bytes of {len(_APPEND_ROWS)} batches are equal"
    )


def check_kernels(
    bench: Bench, shapes: Iterable[AttentionShape], eligible: Eligible
) -> Iterator[Finding]:
    """Each kernel over all the shapes that it serves, against PyTorch."""
    tried: dict[str, list[Outcome]] = {}
    for shape in shapes:
        decisions = eligible(shape)
        if not decisions:
            continue
        inputs = _mixed_inputs(bench, shape)
        expected, _ = torch_backend.torch_mla(inputs)
        for decision in decisions:
            name = f"kernel {decision.kernel}/{decision.phase}"
            tried.setdefault(name, []).append(
                _try_kernel(inputs, decision, expected, shape)
            )
    for name, outcomes in tried.items():
        wrong = [one for one in outcomes if one.problem or one.error > one.allowed]
        worst = max(wrong or outcomes, key=lambda one: (one.problem or "", one.error))
        said = worst.problem or (
            f"largest error of a head {worst.error:.2%}, allowed {worst.allowed:.2%}"
        )
        yield Finding(
            name,
            FAILED if wrong else PASSED,
            f"{len(outcomes) - len(wrong)} of {len(outcomes)} shapes; {said}, at "
            f"{worst.shape}",
        )


@dataclass(frozen=True)
class Outcome:
    """What a kernel made of a shape: its largest error of a head, or why it has none."""

    shape: AttentionShape
    error: float
    allowed: float
    problem: str | None = None


def _try_kernel(
    inputs: SparseMLAInputs,
    decision: Decision,
    expected: torch.Tensor,
    shape: AttentionShape,
) -> Outcome:
    try:
        output, _ = dispatch.launch(inputs, decision)
        error = largest_error(output, expected)
    except Exception as failure:
        return Outcome(shape, float("inf"), 0.0, _said(failure))
    return Outcome(shape, error, allowed_error(inputs, decision, expected))


def allowed_error(
    inputs: SparseMLAInputs, decision: Decision, expected: torch.Tensor
) -> float:
    """What rounding explains: BF16's, and for FlashInfer's kernels what they round to
    NVFP4 and E4M3 on the way, estimated on these inputs."""
    if decision.kernel not in (Kernel.SPARSE, Kernel.CAKE):
        return _MAX_ERROR
    some = slice(0, _ESTIMATE_TOKENS)
    latents, valid = torch_backend.gather(inputs.candidates, some)
    estimate = flashinfer_rounding.attend(
        inputs.q[some],
        latents,
        valid,
        inputs.attn_sink,
        inputs.softmax_scale,
        decision,
    )
    return _MAX_ERROR + _ESTIMATE_FACTOR * largest_error(estimate, expected[some])


def check_graphs(
    bench: Bench, shapes: Iterable[AttentionShape], eligible: Eligible
) -> Iterator[Finding]:
    """A captured graph of each kernel, replayed over other queries and slots."""
    if bench.device.type != "cuda":
        yield Finding("CUDA graphs", NOT_RUN, f"there are none on {bench.device}")
        return
    checked: dict[str, str | None] = {}
    for shape in shapes:
        if not shape.extra_topk or shape.num_tokens not in _GRAPH_TOKENS:
            continue
        for decision in eligible(shape):
            name = f"graph of {decision.kernel}/{decision.phase}, {shape.num_tokens} tokens"
            if name in checked:
                continue
            try:
                checked[name] = _replay_problem(bench, shape, decision)
            except Exception as error:
                checked[name] = f"{shape}: {_said(error)}"
    for name, problem in checked.items():
        yield Finding(
            name,
            FAILED if problem else PASSED,
            problem or "a replay gives what a launch gives",
        )


def _replay_problem(
    bench: Bench, shape: AttentionShape, decision: Decision
) -> str | None:
    inputs, others = _mixed_inputs(bench, shape), _mixed_inputs(bench, shape)
    dispatch.launch(inputs, decision)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output, _ = dispatch.launch(inputs, decision)
    for ours, theirs in zip(_tensors(inputs), _tensors(others), strict=True):
        ours.copy_(theirs)
    graph.replay()
    expected, _ = dispatch.launch(others, decision)
    error = largest_error(output, expected)
    if error > _MAX_ERROR:
        return f"{shape}: a replay is {error:.2%} off a launch"
    return None


def _tensors(inputs: SparseMLAInputs) -> list[torch.Tensor]:
    tensors = [inputs.q, inputs.attn_sink]
    for part in inputs.candidates:
        tensors += [part.indices, part.lengths]
    return [tensor for tensor in tensors if tensor is not None]


def _mixed_inputs(bench: Bench, shape: AttentionShape) -> SparseMLAInputs:
    """A call with lengths of all kinds, slots that are none, and a sink that weighs."""
    made = bench.inputs(shape)
    return dataclasses.replace(
        made,
        main=_with_gaps(bench, made.main),
        extra=None if made.extra is None else _with_gaps(bench, made.extra),
        attn_sink=torch.linspace(-2, 2, shape.num_heads, device=bench.device),
    )


def _with_gaps(bench: Bench, part: CandidateSet) -> CandidateSet:
    num_tokens, width = part.indices.shape
    gaps = torch.rand(
        part.indices.shape, device=bench.device, generator=bench.generator
    )
    lengths = torch.randint(
        1,
        width + 1,
        (num_tokens,),
        dtype=torch.int32,
        device=bench.device,
        generator=bench.generator,
    )
    return dataclasses.replace(
        part, indices=part.indices.masked_fill(gaps < 0.05, -1), lengths=lengths
    )


def largest_error(output: torch.Tensor, expected: torch.Tensor) -> float:
    """Of any token's any head, relative in the 2-norm; infinite where it is not finite."""
    if not output.isfinite().all():
        return float("inf")
    difference = (output.float() - expected.float()).norm(dim=-1)
    return (difference / expected.float().norm(dim=-1)).max().item()


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def line_of(finding: Finding) -> str:
    mark = {PASSED: "[ok]", FAILED: "[!!]", NOT_RUN: "[--]"}[finding.status]
    return f"{mark} {finding.name}: {finding.detail}"


def make_report(
    findings: Sequence[Finding], rows: Sequence[dict], is_sm120: bool
) -> dict:
    """What ``--out``'s files hold."""
    failed = [finding.name for finding in findings if finding.status == FAILED]
    if failed:
        verdict = f"FAILED: {', '.join(failed)}"
    elif is_sm120:
        verdict = (
            "Verified: everything that serves NVFP4 on this GPU computes as it should"
        )
    else:
        verdict = (
            "What runs on this GPU computes as it should. NVFP4 is served on SM120 and "
            "SM121 alone; the checks say what was not run"
        )
    return {
        "verdict": verdict,
        "device": machine.describe_device(),
        "date": datetime.date.today().isoformat(),
        "versions": machine.versions(),
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "operator_rows": list(rows),
    }


def markdown(report: dict) -> str:
    versions = machine.versions_text(report["versions"])
    lines = [
        "# sglang-dsv4-nvfp4 verify",
        "",
        f"{report['device']}, {report['date']}; {versions}",
        "",
        f"**{report['verdict']}.**",
        "",
        "| check | | |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| {one['name']} | {one['status']} | {one['detail'].replace('|', '/')} |"
        for one in report["findings"]
    ]
    if report["operator_rows"]:
        lines += [
            "",
            "Prefill kernels, window 128 and 512 compressed entries; a change above 0 is "
            "NVFP4 being faster.",
            "",
            operator_table.markdown(report["operator_rows"]),
        ]
    return "\n".join(lines) + "\n"


def write(path: Path, report: dict) -> list[Path]:
    """``PATH.md`` and ``PATH.json``."""
    made = []
    for suffix, text in (
        (".md", markdown(report)),
        (".json", json.dumps(report, indent=2) + "\n"),
    ):
        target = path.with_name(path.name + suffix)
        target.write_text(text)
        made.append(target)
    return made
