"""``sglang-dsv4-nvfp4 doctor``: would NVFP4 be served here, and if not, why not.

It asks the same functions that decide at startup, and starts nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

from sglang_dsv4_nvfp4 import flashinfer_contract, kv_gate, machine, seams
from sglang_dsv4_nvfp4.attention import profile
from sglang_dsv4_nvfp4.attention.planner import Planner
from sglang_dsv4_nvfp4.cli.models import V4_FLASH
from sglang_dsv4_nvfp4.cli.sandbox import kv_cache_format_scope
from sglang_dsv4_nvfp4.cli.tune import shapes_of
from sglang_dsv4_nvfp4.config import (
    KV_CACHE_FORMAT_ENV,
    KVCacheFormat,
    checks_indices,
    kernel,
    kv_cache_format,
    scale_rule,
    store_mode,
)
from sglang_dsv4_nvfp4.intree import aliases

_PLUGIN_GROUP = "sglang.srt.plugins"
_PLUGIN_NAME = "dsv4_nvfp4"
# Attention TP 1 and 4; decode, FlashInfer's boundary, and prefill.
_DECISION_HEADS = (64, 16)
_DECISION_TOKENS = (1, 64, 65, 8192)


@dataclass(frozen=True)
class Check:
    """One finding. ``remedy`` says how to mend it, where it is not well."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def run(args: argparse.Namespace) -> int:
    """Print the findings; 0 when NVFP4 would be served, 1 when it would not."""
    report = examine()
    print(_table(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
        print(f"written to {args.json}")
    return 0 if report["ok"] else 1


def examine() -> dict:
    """``{ok, versions, device, requested_format, checks, decisions}``.

    checks are :class:`Check`; decisions are the planner's, where all is well.
    """
    checks = [
        _requested_format(),
        *(_is_in_tree() if aliases.tree() else (_plugin_is_loaded(), *_seams_fit())),
        _flashinfer_fits(),
        _kernel_serves(),
        _device_serves(),
        _profile_fits(),
    ]
    is_well = all(check.ok for check in checks)
    return {
        "ok": is_well,
        "versions": machine.versions(),
        "device": machine.describe_device(),
        "requested_format": os.environ.get(KV_CACHE_FORMAT_ENV),
        "checks": [asdict(check) for check in checks],
        "decisions": _decisions() if is_well else [],
    }


def _requested_format() -> Check:
    def detail() -> str:
        return f"{kv_cache_format().value} is asked for"

    return _attempt("environment", detail, f"set {KV_CACHE_FORMAT_ENV} to fp8 or nvfp4")


def _is_in_tree() -> list[Check]:
    detail = (
        f"NVFP4 is in its own tree, {aliases.tree()}; the plugin does nothing there"
    )
    return [Check("sglang", True, detail)]


def _plugin_is_loaded() -> Check:
    names = [
        point.name for point in importlib.metadata.entry_points(group=_PLUGIN_GROUP)
    ]
    if _PLUGIN_NAME not in names:
        return Check(
            "plugin",
            False,
            f"SGLang finds no entry point {_PLUGIN_NAME} in {_PLUGIN_GROUP}",
            "pip install sglang-dsv4-nvfp4 into the environment of `sglang`",
        )
    allowed = [name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",")]
    if any(allowed) and _PLUGIN_NAME not in allowed:
        return Check(
            "plugin",
            False,
            f"SGLANG_PLUGINS={os.environ['SGLANG_PLUGINS']} leaves {_PLUGIN_NAME} out, "
            "so SGLang would serve in FP8",
            f"add {_PLUGIN_NAME} to SGLANG_PLUGINS, or unset it",
        )
    return Check("plugin", True, f"SGLang loads {_PLUGIN_NAME}")


def _seams_fit() -> list[Check]:
    remedy = f"pip install sglang=={seams.sglang_version()}"
    version = seams.version_problem()
    checks = [
        (
            Check("sglang", False, version, remedy)
            if version
            else Check(
                "sglang", True, f"{seams.sglang_version()}, as the seams need it"
            )
        )
    ]
    problems = seams.problems()
    for seam in seams.SEAMS:
        problem = problems[seam.target]
        if problem:
            checks.append(Check("seam", False, problem, remedy))
        else:
            checks.append(Check("seam", True, f"{seam.target} fits ({seam.purpose})"))
    return checks


def _flashinfer_fits() -> Check:
    problems = flashinfer_contract.flashinfer_problems()
    if problems:
        return Check("flashinfer", False, "; ".join(problems), "as said there")
    return Check(
        "flashinfer",
        True,
        f"{len(flashinfer_contract.FLASHINFER_ENTRY_POINTS)} entry points fit",
    )


def _kernel_serves() -> Check:
    def detail() -> str:
        checks_indices()
        return (
            f"the {kernel().value} kernel would read the pages, the "
            f"{store_mode().value} stores write them with scale rule "
            f"{scale_rule().value}"
        )

    return _attempt("kernel", detail, "set the variable to one of those values")


def _device_serves() -> Check:
    def detail() -> str:
        with kv_cache_format_scope(KVCacheFormat.NVFP4):
            kv_gate.is_nvfp4_kv_cache()
        return f"{machine.describe_device()} serves NVFP4"

    return _attempt("device", detail, "serve in FP8 here, or in NVFP4 on an SM120 GPU")


def _profile_fits() -> Check:
    """The server starts without one, or past one that does not fit: never not ok."""
    path = profile.default_path()
    measure = "sglang-dsv4-nvfp4 tune, to go by measurements of this machine"
    try:
        found = profile.read(path)
    except FileNotFoundError:
        return Check("profile", True, f"none at {path}: documented choices", measure)
    except (OSError, ValueError) as error:
        return Check("profile", True, f"ignored: {error}", measure)
    reason = profile.misfit(found)
    if reason:
        return Check("profile", True, f"{path} is ignored: {reason}", measure)
    detail = f"{len(found.rows)} measurements of {found.date} in {path}"
    return Check("profile", True, detail)


def _decisions() -> list[dict[str, str]]:
    """What the planner would choose for V4-Flash here, if this is an SM120.

    FlashInfer's planner compiles its module when first asked, and needs its device.
    """
    import torch

    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 12:
        return []
    print("asking the planner (FlashInfer compiles its module once)", file=sys.stderr)
    device = torch.device("cuda", torch.cuda.current_device())
    return [
        {
            "shape": str(shape),
            "decision": str(Planner().plan(shape, device, kernel())),
        }
        for shape in shapes_of(V4_FLASH, _DECISION_HEADS, _DECISION_TOKENS)
        if shape.extra_topk in (0, V4_FLASH.index_topk)
    ]


def _attempt(name: str, detail: Callable[[], str], remedy: str) -> Check:
    try:
        return Check(name, True, detail())
    except ValueError as error:
        return Check(name, False, str(error), remedy)


def _table(report: dict) -> str:
    lines = [
        f"{name} {version}" for name, version in report["versions"].items() if version
    ]
    lines += [f"device: {report['device']}", ""]
    for check in report["checks"]:
        lines.append(
            f"[{'ok' if check['ok'] else '!!'}] {check['name']}: {check['detail']}"
        )
        if check["remedy"]:
            lines.append(f"     mend: {check['remedy']}")
    for planned in report["decisions"]:
        lines.append(f"     {planned['shape']}: {planned['decision']}")
    verdict = "serves NVFP4" if report["ok"] else "would not serve NVFP4: see [!!]"
    lines += ["", f"{KV_CACHE_FORMAT_ENV}=nvfp4 sglang serve ... here {verdict}"]
    return "\n".join(lines)
