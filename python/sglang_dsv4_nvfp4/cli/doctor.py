"""``sglang-dsv4-nvfp4 doctor``: would NVFP4 be served here, and if not, why not.

It asks the same functions that decide at startup, and starts nothing.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from sglang_dsv4_nvfp4 import platform, seams
from sglang_dsv4_nvfp4.cli.sandbox import kv_cache_format_scope
from sglang_dsv4_nvfp4.config import (
    KV_CACHE_FORMAT_ENV,
    KVCacheFormat,
    attention_backend,
    kv_cache_format,
    scale_rule,
    store_mode,
)

_PLUGIN_GROUP = "sglang.srt.plugins"
_PLUGIN_NAME = "dsv4_nvfp4"


@dataclass(frozen=True)
class Check:
    """One finding. ``remedy`` says how to mend it, where it is not well."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def run(json_path: Path | None) -> int:
    """Print the findings; 0 when NVFP4 would be served, 1 when it would not."""
    report = examine()
    print(_table(report))
    if json_path:
        json_path.write_text(json.dumps(report, indent=2) + "\n")
        print(f"written to {json_path}")
    return 0 if report["ok"] else 1


def examine() -> dict:
    """``{ok, versions, device, requested_format, checks}``; checks as :class:`Check`."""
    checks = [
        _requested_format(),
        _plugin_is_loaded(),
        *_seams_fit(),
        _flashinfer_fits(),
        _backend_serves(),
        _device_serves(),
    ]
    return {
        "ok": all(check.ok for check in checks),
        "versions": platform.versions(),
        "device": platform.describe_device(),
        "requested_format": os.environ.get(KV_CACHE_FORMAT_ENV),
        "checks": [asdict(check) for check in checks],
    }


def _requested_format() -> Check:
    def detail() -> str:
        return f"{kv_cache_format().value} is asked for"

    return _attempt("environment", detail, f"set {KV_CACHE_FORMAT_ENV} to fp8 or nvfp4")


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
    remedy = f"pip install sglang=={seams.SGLANG_VERSION}"
    version = seams.version_problem()
    checks = [
        (
            Check("sglang", False, version, remedy)
            if version
            else Check("sglang", True, f"{seams.SGLANG_VERSION}, as the seams need it")
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
    problems = platform.flashinfer_problems()
    if problems:
        return Check("flashinfer", False, "; ".join(problems), "as said there")
    return Check(
        "flashinfer", True, f"{len(platform.FLASHINFER_ENTRY_POINTS)} entry points fit"
    )


def _backend_serves() -> Check:
    def detail() -> str:
        return (
            f"the {attention_backend().value} backend would read the pages, the "
            f"{store_mode().value} stores write them with scale rule "
            f"{scale_rule().value}"
        )

    return _attempt("backend", detail, "set the variable to one of those values")


def _device_serves() -> Check:
    def detail() -> str:
        with kv_cache_format_scope(KVCacheFormat.NVFP4):
            platform.is_nvfp4_kv_cache()
        return f"{platform.describe_device()} serves NVFP4"

    return _attempt("device", detail, "serve in FP8 here, or in NVFP4 on an SM120 GPU")


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
    verdict = "serves NVFP4" if report["ok"] else "would not serve NVFP4: see [!!]"
    lines += ["", f"{KV_CACHE_FORMAT_ENV}=nvfp4 sglang serve ... here {verdict}"]
    return "\n".join(lines)
