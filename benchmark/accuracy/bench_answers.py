#!/usr/bin/env python3
"""Right answers in FP8 and in NVFP4: GSM8K, and a needle in a growing context.

    bench_answers.py gsm8k --model-path deepseek-ai/DeepSeek-V4-Flash --topology dp4 \\
        --max-total-tokens 9910016 --out results/gsm8k
    bench_answers.py needle ... --context-lens 8192 65536 524288

Starts a server of each format in turn, asks both the same, and tests whether their shares
of right answers differ. In --out: ``answers.json``, ``table.md`` and the servers' logs. A
format whose answers are there already is not asked again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import requests

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from accuracy.proportions import Share, compare
from serving import arms
from serving.samples import ARMS
from serving.server import Server

from sglang_dsv4_nvfp4.machine import versions_text

# Filler that says nothing of numbers, a word a token or so.
_SENTENCES = ("The grass is green.", "The sky is blue.", "Here we go.", "And back.")
_FILLER = " ".join(_SENTENCES).split()
GSM8K_TEST_QUESTIONS = 1319
_DEPTHS = (0.05, 0.25, 0.5, 0.75, 0.95)
# Options that decide what a task asks.
SETTINGS = {
    "gsm8k": ("num_questions", "num_shots", "max_new_tokens"),
    "needle": ("context_lens", "repeats"),
}


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    return arms.exit_status("bench_answers", lambda: run(args))


def run(args: Namespace) -> None:
    """Ask both formats, and publish their shares."""
    if args.task == "gsm8k":
        _check_count(args)
    what_is_asked = {name: getattr(args, name) for name in SETTINGS[args.task]}
    settings = arms.settings_of(args, task=args.task, **what_is_asked)
    arms.keep_settings(args.out, settings)
    table = markdown(settings, ask(args, settings))
    (args.out / "table.md").write_text(table)
    print(f"\n{table}\nwritten to {args.out}: table.md, answers.json")


def parse(argv: list[str] | None) -> Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tasks = parser.add_subparsers(dest="task", required=True)
    gsm8k = tasks.add_parser("gsm8k", help="SGLang's few-shot GSM8K")
    gsm8k.add_argument("--num-questions", type=int, default=1000)
    gsm8k.add_argument("--num-shots", type=int, default=5)
    gsm8k.add_argument("--max-new-tokens", type=int, default=512)
    gsm8k.add_argument("--parallel", type=int, default=128)
    gsm8k.add_argument(
        "--data-path", help="test.jsonl of GSM8K (default: SGLang downloads it)"
    )
    needle = tasks.add_parser("needle", help="a number to be found in filler")
    needle.add_argument(
        "--context-lens",
        type=int,
        nargs="+",
        default=[4096, 16384, 65536, 262144],
        help="words of filler, a token or so each (default: 4096 to 262144)",
    )
    needle.add_argument(
        "--repeats", type=int, default=4, help="of each of five depths (default: 4)"
    )
    needle.add_argument("--parallel", type=int, default=4)
    for task in (gsm8k, needle):
        arms.add_arguments(task)
    return parser.parse_args(argv)


def ask(args: Namespace, settings: dict) -> dict[str, dict[str, list[int]]]:
    """``{arm: {case: [right, count]}}``, each arm written when it is through."""
    path = args.out / "answers.json"
    answers = json.loads(path.read_text()) if path.is_file() else {}
    for arm in ARMS:
        if arm in answers:
            print(f"{arm}: answered already")
            continue
        print(f"{arm}: starting", flush=True)
        with arms.start(args, settings, arm) as server:
            arms.check(server, arm, args.max_total_tokens)
            cases = _gsm8k if args.task == "gsm8k" else _needle
            answers[arm] = {}
            folder = args.out / arm
            folder.mkdir(exist_ok=True)
            for case, share in cases(args, server, folder):
                answers[arm][case] = [share.right, share.count]
                print(f"{arm}: {case}: {share.right} of {share.count}", flush=True)
        path.write_text(json.dumps(answers, indent=1) + "\n")
    return answers


def _gsm8k(
    args: Namespace, server: Server, folder: Path
) -> Iterator[tuple[str, Share]]:
    from sglang.test.few_shot_gsm8k import run_eval

    url = urlsplit(server.url)
    asked = Namespace(
        num_shots=args.num_shots,
        num_questions=args.num_questions,
        max_new_tokens=args.max_new_tokens,
        parallel=args.parallel,
        data_path=args.data_path and os.path.abspath(args.data_path),
        host=url.hostname,
        port=url.port,
        temperature=0.0,
    )
    # It leaves the answers in a file of the current folder.
    with contextlib.chdir(folder):
        accuracy = run_eval(asked)["accuracy"]
    count = args.num_questions
    yield f"GSM8K, {args.num_shots}-shot", Share(round(accuracy * count), count)


def _check_count(args: Namespace) -> None:
    """SGLang's program takes fewer questions without a word where there are fewer.

    Raises:
        ValueError: saying how many there are.
    """
    from sglang.utils import read_jsonl

    found = GSM8K_TEST_QUESTIONS
    if args.data_path:
        found = sum(1 for _ in read_jsonl(args.data_path))
    if found < args.num_questions:
        raise ValueError(
            f"--num-questions {args.num_questions}: there are {found} in "
            f"{args.data_path or 'GSM8K'}"
        )


def _needle(
    args: Namespace, server: Server, folder: Path
) -> Iterator[tuple[str, Share]]:
    for length in args.context_lens:
        asked = list(needles(length, args.repeats))
        with ThreadPoolExecutor(args.parallel) as pool:
            said = pool.map(lambda one: _generate(server, one[0]), asked)
            right = sum(
                number in text for (_, number), text in zip(asked, said, strict=True)
            )
        yield f"needle in {length}", Share(right, len(asked))


def needles(length: int, repeats: int) -> Iterator[tuple[str, str]]:
    """Prompts of ``length`` words of filler, and the number that each hides: the same
    ones for every server."""
    drawn = random.Random(length)
    filler = (_FILLER * (length // len(_FILLER) + 1))[:length]
    for depth in _DEPTHS:
        for _ in range(repeats):
            number = f"{drawn.randrange(10**6, 10**7)}"
            at = int(depth * length)
            words = [*filler[:at], f"The pass key is {number}.", *filler[at:]]
            yield (
                "There is a pass key in this text. Find it and remember it.\n"
                f"{' '.join(words)}\nWhat is the pass key? The pass key is",
                number,
            )


def _generate(server: Server, prompt: str) -> str:
    answer = requests.post(
        f"{server.url}/generate",
        json={
            "text": prompt,
            "sampling_params": {"temperature": 0.0, "max_new_tokens": 16},
        },
        timeout=3600,
    )
    answer.raise_for_status()
    return answer.json()["text"]


def markdown(settings: dict, answers: dict) -> str:
    """Shares with their standard errors, and the two-proportion test of each case."""
    versions = versions_text(settings["versions"])
    lines = [
        f"# Right answers, FP8 and NVFP4: {settings['model_path']}",
        "",
        f"{settings['device']}, {settings['date']}; {versions}; topology "
        f"{settings['topology']}.",
        "",
        "| | fp8 | nvfp4 | difference | by chance |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for case in answers["fp8"]:
        fp8, nvfp4 = (Share(*answers[arm][case]) for arm in ARMS)
        found = compare(nvfp4, fp8)
        cells = [
            case,
            *(
                f"{share.value:.3f} ± {share.standard_error:.3f} (n = {share.count})"
                for share in (fp8, nvfp4)
            ),
            f"{nvfp4.value - fp8.value:+.3f}, {abs(found.sigmas):.1f} sigma",
            f"p = {found.p_value:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
