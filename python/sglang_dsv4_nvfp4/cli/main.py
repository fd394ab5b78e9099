"""``sglang-dsv4-nvfp4``: arguments in, exit status out."""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from sglang_dsv4_nvfp4 import __version__

# Each subcommand's module, imported only when it is called: SGLang takes seconds.
_COMMANDS = {
    "demo": "write and read the same workload in FP8 and in NVFP4, and compare",
    "doctor": "say whether NVFP4 would be served here, and how to mend what is wrong",
    "tune": "measure every kernel on this GPU, for the planner to go by",
}
_WITH_RESULT_FILE = ("demo", "doctor")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; 0 when all is well, 1 when something is not."""
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
        if name == "tune":
            _add_tune_arguments(command)
    args = parser.parse_args(argv)
    result_file = getattr(args, "json", None)
    if result_file and not result_file.parent.is_dir():
        parser.error(f"--json {result_file}: {result_file.parent} is no directory")
    # SGLang's modules warn, on import, of hardware that is not there.
    warnings.filterwarnings("ignore", module=r"sglang\.")
    return importlib.import_module(f"{__package__}.{args.command}").run(args)


def _add_tune_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--model",
        default="v4-flash",
        help="v4-flash (default), v4-pro, or the path of a config.json or its folder",
    )
    command.add_argument(
        "--heads",
        type=_positive,
        nargs="+",
        help="heads a rank (default: the model's at attention TP 1, 2, 4 and 8)",
    )
    command.add_argument(
        "--tokens",
        type=_positive,
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


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


if __name__ == "__main__":
    sys.exit(main())
