#!/usr/bin/env python3
"""Write the figures of the README and the docs from the data they come from.

Usage: render_tables.py [--check]

Between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->`` a page holds what this script
renders; ``--check`` fails where it does not.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from sglang_dsv4_nvfp4 import seams
from sglang_dsv4_nvfp4.cli import operator_table
from sglang_dsv4_nvfp4.cli.demo import table
from sglang_dsv4_nvfp4.intree import edits, places
from sglang_dsv4_nvfp4.intree.tree import Tree

ROOT = Path(__file__).resolve().parent.parent


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


def render_store() -> str:
    """Each result file of the store benchmark: ratios to FP8 and to staged."""
    return _tables("store", _store_table)


def _tables(area: str, table_of: Callable[[dict], str]) -> str:
    """One table for each result file of a benchmark."""
    paths = sorted((ROOT / "benchmark" / area / "results").glob("*.json"))
    return "\n\n".join(table_of(json.loads(path.read_text())) for path in paths)


def _store_table(data: dict) -> str:
    def of(case: str, baseline: str, tokens: int) -> dict | None:
        for row in data["rows"]:
            if (row["case"], row["tokens"]) == (case, tokens) and row[
                "baseline"
            ].startswith(baseline):
                return row
        return None

    copy = data["ceilings"]["copy_bytes_per_second"] / 1e12
    lines = [
        f"{data['device']}, {data['date']}, sglang {data['versions']['sglang']}, torch "
        f"{data['versions']['torch']}; a device copy moves {copy:.2f} TB/s:",
        "",
        "| rows | window, us | against FP8 | against two launches | of the copy's "
        "bandwidth | c4 decode against FP8 | c4 prefill | c128 decode | c128 prefill "
        "| append: equal slots settled | append: 4over6 |",
        "| ---: " * 11 + "|",
    ]
    for tokens in sorted({row["tokens"] for row in data["rows"]}):
        window = of("window", "SGLang fused", tokens)
        cells = [
            f"{tokens}",
            f"{window['us']:.2f}",
            _ratio(window),
            _ratio(of("window", "two launches", tokens)),
            f"{window['floor_share']:.0%}",
            *(
                _ratio(of(f"compressed {case}", "SGLang", tokens))
                for case in ("c4 decode", "c4 prefill", "c128 decode", "c128 prefill")
            ),
            _ratio(of("append, equal slots settled", "append", tokens)),
            _ratio(of("append, 4over6", "append", tokens)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    memory = data["extra_memory"]
    lines += [
        "",
        f"Extra memory of a window store of {memory['tokens']} rows: "
        f"{memory['fused_bytes']} bytes fused; staged, "
        f"{memory['staged_arena_bytes'] >> 20} MiB of staging that stays and "
        f"{memory['staged_temporary_bytes'] >> 10} KiB for the call.",
    ]
    return "\n".join(lines)


def _ratio(row: dict | None) -> str:
    return f"{row['ratio']:.2f}" if row else ""


def render_attention() -> str:
    """Each result file of the attention benchmark, by heads and extra cache."""
    return _tables("attention", _attention_table)


def _attention_table(data: dict) -> str:
    ceilings = data["ceilings"]
    lines = [
        f"{data['device']}, {data['date']}, torch {data['versions']['torch']}, triton "
        f"{data['versions']['triton']}; a copy moves "
        f"{ceilings['copy_bytes_per_second'] / 1e12:.2f} TB/s, a BF16 product makes "
        f"{ceilings['bf16_matmul_flops'] / 1e12:.0f} TFLOP/s:",
        "",
        "| heads | candidates | tokens | triton, us | of the floor | FlashMLA FP8, us | "
        "triton / FlashMLA | fallback / triton | portable kernel, us |",
        "| ---: " * 9 + "|",
    ]
    rows: dict[tuple, dict[tuple[str, str], dict]] = {}
    for row in data["rows"]:
        key = (
            row["extra_page_size"] == 2,
            row["extra_topk"],
            row["heads"],
            row["tokens"],
        )
        rows.setdefault(key, {})[row["kernel"], row["baseline"].split()[0]] = row
    for (is_c128, extra_topk, heads, tokens), of in sorted(rows.items()):
        best = of["triton", "FlashMLA"]
        fallback = of.get(("triton", "SGLang's"))
        cells = [
            f"{heads}",
            f"128 + {extra_topk} ({'c128' if is_c128 else 'c4'})",
            f"{tokens}",
            f"{best['us']:.1f}",
            f"{best['floor_share']:.0%}",
            f"{best['baseline_us']:.1f}",
            _ratio(best),
            f"{1 / fallback['ratio']:.0f}" if fallback else "",
            f"{of['triton, portable kernel', 'FlashMLA']['us']:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def render_scale() -> str:
    """The error of the scale rules, by kind of latents."""
    path = ROOT / "benchmark/accuracy/results/scale_rule.json"
    data = json.loads(path.read_text())
    lines = [
        f"On a {data['device'].upper()}, {data['rows'][0]['tokens']} rows of each kind:",
        "",
        "| latents | FP8 | amax6 | 4over6 | error saved | groups that take 4 |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in data["rows"]:
        lines.append(
            f"| {row['case']} | {row['fp8_rel_error']:.2%} "
            f"| {row['amax6_rel_error']:.2%} | {row['4over6_rel_error']:.2%} "
            f"| {row['error_saved']:.1%} | {row['groups_that_take_4']:.0%} |"
        )
    return "\n".join(lines)


def render_attention_error() -> str:
    """The error of attention's output, by kind of latents and sharpness of logits."""
    path = ROOT / "benchmark/accuracy/results/attention_error.json"
    data = json.loads(path.read_text())
    lines = [
        f"On a {data['device'].upper()}, {data['date']}, {data['rows'][0]['tokens']} "
        "queries of each kind:",
        "",
        "| latents | logits | FP8 | NVFP4, amax6 | NVFP4, 4over6 | amax6 by `sparse` | "
        "amax6 by `cake` | cosine: FP8 | amax6 | 4over6 | `sparse` | `cake` |",
        "| --- | --- |" + " ---: |" * 10,
    ]
    formats = ("fp8", "amax6", "4over6", "sparse", "cake")
    for row in data["rows"]:
        errors = [f"{row[f'{name}_rel_error']:.1%}" for name in formats]
        cosines = [f"{row[f'{name}_cosine']:.4f}" for name in formats]
        lines.append(
            f"| {row['case']} | {row['logits']} | {' | '.join(errors + cosines)} |"
        )
    return "\n".join(lines)


def render_operator() -> str:
    """Each result file of the operator benchmark."""
    return _tables("operator", _operator_table)


def _operator_table(data: dict) -> str:
    return (
        f"{data['device']}, {data['date']}, torch {data['versions']['torch']}, triton "
        f"{data['versions']['triton']}:\n\n{operator_table.markdown(data['rows'])}"
    )


def render_sites() -> str:
    """What the in-tree form writes into SGLang's own files, and how much it adds."""
    installed = places.installed_sglang().parent
    added = {
        change.path: len(change.applied.splitlines())
        - len((change.without or "").splitlines())
        for change in Tree(installed).changes()
    }
    purposes = {seam.target: seam.purpose for seam in seams.SEAMS}
    made = edits.edits(installed, problems=[])
    lines = ["| file | lines | at | what |", "| --- | --- | --- | --- |"]
    for edit in sorted(made, key=lambda edit: edit.file):
        lines.append(
            f"| `{edit.file}` | {added.pop(edit.file)} | `{edit.site.described()}` | "
            f"{purposes.get(edit.reason, edit.reason)} |"
        )
    folders: dict[str, list[int]] = {}
    for path, count in added.items():
        folders.setdefault(str(Path(path).parent), []).append(count)
    lines += ["", "| new in | files | lines |", "| --- | --- | --- |"]
    for folder, counts in sorted(folders.items()):
        lines.append(f"| `{folder}` | {len(counts)} | {sum(counts)} |")
    return "\n".join(lines)


PAGES = {
    ROOT / "docs/upstreaming.md": {"sites": render_sites},
    ROOT / "README.md": {"demo": render_demo, "patch": render_patch},
    ROOT
    / "docs/benchmarks.md": {
        "store": render_store,
        "attention": render_attention,
        "operator": render_operator,
        "scale": render_scale,
        "attention-error": render_attention_error,
    },
}


def rendered(page: Path) -> str:
    """The page's text with every marked part rendered anew."""
    text = page.read_text()
    for name, render in PAGES[page].items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        pattern = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise SystemExit(f"{page.name} needs one {begin} ... {end}")
        before, after = pattern.split(text)
        text = f"{before}{begin}\n{render()}\n{end}{after}"
    return text


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = [page for page in PAGES if page.read_text() != rendered(page)]
    for page in stale:
        if check:
            print(f"{page.name} differs from its data: run docs/render_tables.py")
        else:
            page.write_text(rendered(page))
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
