#!/usr/bin/env python3
"""Prefill kernels at 16 to 128 heads a rank, NVFP4 against FP8: the patch's table.

Usage: bench_operator.py [--out DIR]

Every NVFP4 kernel that serves this GPU, and what reads FP8 on it. Prints the table and
writes ``<device>.json`` to DIR (benchmark/operator/results).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness

from sglang_dsv4_nvfp4.cli import operator_table
from sglang_dsv4_nvfp4.cli.tune import Bench


def main() -> int:
    out = harness.out_folder(__file__, __doc__)
    rows = operator_table.measure(Bench(torch.device("cuda")))
    print(operator_table.markdown(rows))
    harness.write(out, {}, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
