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
}


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
        command.add_argument(
            "--json", type=Path, metavar="FILE", help="also write the result here"
        )
    args = parser.parse_args(argv)
    if args.json and not args.json.parent.is_dir():
        parser.error(f"--json {args.json}: {args.json.parent} is no directory")
    # SGLang's modules warn, on import, of hardware that is not there.
    warnings.filterwarnings("ignore", module=r"sglang\.")
    return importlib.import_module(f"{__package__}.{args.command}").run(args.json)


if __name__ == "__main__":
    sys.exit(main())
