"""``sglang-dsv4-nvfp4``: arguments in, exit status out."""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from sglang_dsv4_nvfp4 import __version__
from sglang_dsv4_nvfp4.intree import aliases

# Each subcommand's module, imported only when it is called: SGLang takes seconds.
_COMMANDS = {
    "capacity": "say how many tokens a memory budget holds in FP8 and in NVFP4",
    "demo": "write and read the same workload in FP8 and in NVFP4, and compare",
    "doctor": "say whether NVFP4 would be served here, and how to mend what is wrong",
    "intree": "bring this feature into an SGLang source tree, or take it out again",
    "tune": "measure every kernel on this GPU, for the planner to go by",
    "verify": "check stores, kernels and graphs on this GPU, and write a report",
}
_WITH_RESULT_FILE = ("capacity", "demo", "doctor")


def build_parser() -> argparse.ArgumentParser:
    """Every subcommand's arguments."""
    parser = argparse.ArgumentParser(
        prog="sglang-dsv4-nvfp4",
        description="NVFP4 KV cache for DeepSeek-V4 in SGLang.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, summary in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name in _WITH_RESULT_FILE:
            command.add_argument(
                "--json", type=Path, metavar="FILE", help="also write the result here"
            )
        if name in _ARGUMENTS:
            _ARGUMENTS[name](command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; 0 when all is well, 1 when something is not."""
    parser = build_parser()
    args = parser.parse_args(argv)
    result_file = getattr(args, "json", None)
    if result_file and not result_file.parent.is_dir():
        parser.error(f"--json {result_file}: {result_file.parent} is no directory")
    out = getattr(args, "out", None)
    if args.command == "verify" and not out.parent.is_dir():
        parser.error(f"--out {out}: {out.parent} is no directory")
    if args.command == "intree":
        # The tree may be the installed SGLang, and half done.
        aliases.uninstall()
    # SGLang's modules warn, on import, of hardware that is not there.
    warnings.filterwarnings("ignore", module=r"sglang\.")
    return importlib.import_module(f"{__package__}.{args.command}").run(args)


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--model",
        default="v4-flash",
        help="v4-flash (default), v4-pro, or the path of a config.json or its folder",
    )


def _add_capacity_arguments(command: argparse.ArgumentParser) -> None:
    _add_model(command)
    memory = command.add_mutually_exclusive_group(required=True)
    memory.add_argument(
        "--kv-gib",
        type=_positive_float,
        help="memory of one rank for KV caches, as SGLang's log says it",
    )
    memory.add_argument(
        "--gpu-gib", type=_positive_float, help="memory of one GPU, weights included"
    )
    command.add_argument(
        "--weights-gib",
        type=_positive_float,
        help="with --gpu-gib: one rank's weights (default: the checkpoint's size, from "
        "its index, over all ranks; more where DP or CP ranks each hold attention's)",
    )
    command.add_argument(
        "--mem-fraction-static",
        type=_fraction,
        default=0.88,
        help="with --gpu-gib: SGLang's option, whose own default depends on the GPU and "
        "the topology (default: 0.88)",
    )
    for option, meaning in (
        ("--tp-size", "GPUs of one pipeline stage"),
        ("--dp-size", "data-parallel attention ranks among them"),
        ("--pp-size", "pipeline stages"),
    ):
        command.add_argument(
            option, type=positive, default=1, help=f"{meaning} (default: 1)"
        )
    command.add_argument(
        "--enable-prefill-cp",
        action="store_true",
        help="the GPUs of a stage share prefills, not heads",
    )
    command.add_argument(
        "--mtp", action="store_true", help="with the MTP layer as EAGLE's draft"
    )
    command.add_argument(
        "--max-running-requests",
        type=positive,
        default=256,
        help="of the whole server; it sizes the window pool (default: SGLang's 256)",
    )
    command.add_argument(
        "--chunked-prefill-size", type=positive, default=8192, help="(default: 8192)"
    )


def _add_intree_arguments(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(dest="action", required=True)
    for name, summary in (
        ("apply", "edit the tree in place; where it is done already, change nothing"),
        ("diff", "print the patch that `apply` makes; the tree stays as it is"),
        ("revert", "take out what `apply` brought in"),
    ):
        action = actions.add_parser(name, help=summary, description=summary)
        action.add_argument(
            "--tree",
            type=Path,
            required=True,
            metavar="DIR",
            help="an SGLang checkout, or an unpacked package",
        )
        if name == "apply":
            action.add_argument(
                "--check",
                action="store_true",
                help="say what would change, and write nothing; an anchor that is missing "
                "is an error",
            )


def _add_tune_arguments(command: argparse.ArgumentParser) -> None:
    _add_model(command)
    command.add_argument(
        "--heads",
        type=positive,
        nargs="+",
        help="heads a rank (default: the model's at attention TP 1, 2, 4 and 8)",
    )
    command.add_argument(
        "--tokens",
        type=positive,
        nargs="+",
        help="batch sizes (default: 1 to 8192, dense around 64)",
    )
    command.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the profile (default: where the planner looks; it looks elsewhere if "
        "SGLANG_SM120_NVFP4_PROFILE says so)",
    )
    command.add_argument(
        "--restart", action="store_true", help="measure anew what FILE has already"
    )


def _add_verify_arguments(command: argparse.ArgumentParser) -> None:
    _add_model(command)
    command.add_argument(
        "--out",
        type=Path,
        default=Path("verify-report"),
        metavar="PATH",
        help="the report is PATH.md and PATH.json (default: verify-report)",
    )
    command.add_argument(
        "--no-times", action="store_true", help="check only; leave the kernels untimed"
    )


def positive(text: str) -> int:
    """An argument's type: a whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def _positive_float(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def _fraction(text: str) -> float:
    value = _positive_float(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"{text} is more than 1")
    return value


_ARGUMENTS = {
    "capacity": _add_capacity_arguments,
    "intree": _add_intree_arguments,
    "tune": _add_tune_arguments,
    "verify": _add_verify_arguments,
}


if __name__ == "__main__":
    sys.exit(main())
