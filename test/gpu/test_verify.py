"""``sglang-dsv4-nvfp4 verify`` on the GPU at hand: nothing may fail."""

import json

import pytest
import torch
from support.processes import run_python

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"
)


def test_nothing_fails_here(tmp_path):
    out = tmp_path / "report"
    ran = run_python(
        "-m", "sglang_dsv4_nvfp4.cli.main", "verify", "--no-times", "--out", str(out)
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr[-2000:]
    report = json.loads(out.with_suffix(".json").read_text())
    passed = {one["name"] for one in report["findings"] if one["status"] == "passed"}
    assert {"fused store, amax6", "fused store, 4over6"} < passed
    assert any(name.startswith("kernel triton/") for name in passed)
    assert any(name.startswith("graph of triton/") for name in passed)
