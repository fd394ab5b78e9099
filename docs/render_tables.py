#!/usr/bin/env python3
"""Write the README's figures from the data files that they come from.

Usage: render_tables.py [--check]

Between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->`` the README holds what this
script renders; ``--check`` fails where it does not.
"""

import json
import re
import sys
from pathlib import Path

from sglang_dsv4_nvfp4.cli.demo import table

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"


def render_demo() -> str:
    """The demo's own table of the CPU run."""
    data = json.loads((ROOT / "benchmark/demo/results/cpu.json").read_text())
    return f"```\n{table(data)}\n```"


def render_patch() -> str:
    """The figures of the original patch, as its author gave them."""
    path = ROOT / "benchmark/original_patch/results.json"
    data = json.loads(path.read_text())
    lines = ["| what | NVFP4 against FP8 |", "| --- | --- |"]
    prefill = data["prefill_throughput_change_percent"]
    serving = data["serving_throughput_change_percent"]
    for label, rows in (
        ("prefill kernel, {} heads per rank", prefill),
        ("end to end at attention TP 1, {} input tokens", serving),
    ):
        for key, change in rows.items():
            if key != "what":
                lines.append(f"| {label.format(key)} | {_percent_range(change)} |")
    gsm8k = data["gsm8k"]
    lines.append(
        f"| GSM8K, {gsm8k['questions']} questions | {gsm8k['nvfp4']} against "
        f"{gsm8k['fp8']} |"
    )
    return "\n".join(lines)


def _percent_range(change: list[int]) -> str:
    low, high = change
    return f"{low:+d} %" if low == high else f"{low:+d} to {high:+d} %"


def rendered(text: str) -> str:
    """``text`` with every marked part rendered anew."""
    for name, render in (("demo", render_demo), ("patch", render_patch)):
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        pattern = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise SystemExit(f"README.md needs one {begin} ... {end}")
        before, after = pattern.split(text)
        text = f"{before}{begin}\n{render()}\n{end}{after}"
    return text


def main() -> int:
    before = README.read_text()
    after = rendered(before)
    if "--check" in sys.argv[1:]:
        if before != after:
            print("README.md differs from its data: run docs/render_tables.py")
        return int(before != after)
    README.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
