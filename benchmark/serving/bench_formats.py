#!/usr/bin/env python3
"""FP8 against NVFP4 under load: the same server, the same token count, in both formats.

    bench_formats.py --model-path deepseek-ai/DeepSeek-V4-Flash --topology dp4 \\
        --max-total-tokens 9910016 --out results/dp4

Each round starts a server of each format in turn, runs every workload against it once by
SGLang's ``bench_serving``, and stops it. Rounds go on where an interrupted run stopped.
``sglang-dsv4-nvfp4 capacity`` says which token count fits both. In --out: ``raw/``,
``table.md``, plots, and the servers' logs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from serving import arms, report
from serving.cells import PRESETS, Workload, workload
from serving.samples import ARMS, Sample, compare, path_of, read, write
from serving.server import Server, ServerError, end_with_parent

BENCH = (sys.executable, "-m", "sglang.bench_serving")


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    return arms.exit_status("bench_formats", lambda: run(args))


def run(args: argparse.Namespace) -> None:
    """Measure, and publish what there is however that ends."""
    settings = arms.settings_of(args, tokenizer=args.tokenizer)
    arms.keep_settings(args.out, settings)
    try:
        measure(args, settings)
    finally:
        publish(args.out, settings)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arms.add_arguments(parser)
    parser.add_argument(
        "--workloads",
        nargs="+",
        default=list(PRESETS),
        metavar="WORKLOAD",
        help=f"{', '.join(PRESETS)} (default: all), or ISL:OSL:CONCURRENCY:PROMPTS",
    )
    parser.add_argument("--samples", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument(
        "--tokenizer", help="for bench_serving (default: the model's own)"
    )
    args = parser.parse_args(argv)
    if args.samples < 1:
        parser.error("--samples must be positive")
    try:
        args.workloads = [workload(text) for text in args.workloads]
    except ValueError as error:
        parser.error(str(error))
    return args


def measure(args: argparse.Namespace, settings: dict) -> None:
    """Take every sample that is not there yet, the arms in turn."""
    asked = [
        path_of(args.out, cell.name, arm, number)
        for number in range(args.samples)
        for arm in ARMS
        for cell in args.workloads
    ]
    total, done = len(asked), sum(path.is_file() for path in asked)
    started = time.monotonic()
    for number in range(args.samples):
        # The other arm first in every other round, so that neither has all the warm ones.
        for arm in ARMS if number % 2 == 0 else reversed(ARMS):
            lacking = [
                cell
                for cell in args.workloads
                if not path_of(args.out, cell.name, arm, number).is_file()
            ]
            if not lacking:
                continue
            print(f"round {number + 1} of {args.samples}: starting {arm}", flush=True)
            with arms.start(args, settings, arm) as server:
                tokens = arms.check(server, arm, args.max_total_tokens)
                for cell in lacking:
                    result = bench(args, server, cell, number)
                    write(args.out, Sample(cell.name, arm, number, tokens, result))
                    done += 1
                    print(
                        f"[{done}/{total} {time.monotonic() - started:.0f} s] "
                        f"{cell.name} {arm} {number + 1}: "
                        f"{result['total_throughput']:.1f} tok/s, median TTFT "
                        f"{result['median_ttft_ms']:.1f} ms",
                        flush=True,
                    )


def bench(
    args: argparse.Namespace, server: Server, cell: Workload, number: int
) -> dict:
    """One run of ``bench_serving``; the seed is the round's, the same in both arms.

    Raises:
        ServerError: it failed, or not every request was answered.
    """
    output = args.out / "bench.jsonl"
    output.unlink(missing_ok=True)
    command = [
        *BENCH,
        *("--backend", "sglang", "--base-url", server.url),
        *("--model", args.model_path),
        *("--tokenizer", args.tokenizer or args.model_path),
        *("--dataset-name", "random-ids", "--random-range-ratio", "1.0"),
        *("--random-input-len", str(cell.input_len)),
        *("--random-output-len", str(cell.output_len)),
        *("--num-prompts", str(cell.num_prompts)),
        *("--max-concurrency", str(cell.concurrency)),
        *("--seed", str(number), "--flush-cache", "--disable-tqdm"),
        # A new server compiles kernels at its first batches of a kind.
        *("--warmup-requests", str(cell.concurrency)),
        *("--output-file", str(output)),
    ]
    log = args.out / "bench.log"
    with log.open("w") as text:
        ran = subprocess.run(
            command,
            stdout=text,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent,
        )
    if ran.returncode or not output.is_file():
        raise ServerError(
            f"bench_serving ended with {ran.returncode} on {cell.name}; see {log}"
        )
    result = json.loads(output.read_text().splitlines()[-1])
    output.unlink()
    if result["completed"] != cell.num_prompts:
        raise ServerError(
            f"{result['completed']} of {cell.num_prompts} requests of {cell.name} were "
            f"answered; see {log} and {server.log}"
        )
    return result


def publish(folder: Path, settings: dict) -> None:
    """The table and plots of the samples that there are."""
    samples = read(folder)
    if not samples:
        return
    comparisons = compare(samples)
    table = report.markdown(settings, comparisons)
    (folder / "table.md").write_text(table)
    plots = report.plot(comparisons, folder)
    print(f"\n{table}\nwritten to {folder}: table.md, {len(plots)} plots, raw/")


if __name__ == "__main__":
    sys.exit(main())
