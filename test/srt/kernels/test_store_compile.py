"""The store kernels compiled for GPUs that are not here."""

import json
from pathlib import Path

import pytest
import support
from support.processes import run_python

SCRIPT = Path(support.__file__).with_name("compile_kernels.py")
# Half a group a lane, two words of codes: four conversions a word.
NATIVE_CONVERSIONS = 8


@pytest.fixture(scope="module")
def compiled():
    result = run_python(str(SCRIPT))
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_every_kernel_compiles_for_every_target(compiled):
    assert len(compiled) == 3 * 4 * 2
    assert {row["arch"] for row in compiled} == {90, 100, 120, 121}


def test_blackwell_converts_by_its_instruction_and_hopper_cannot(compiled):
    for row in compiled:
        expected = NATIVE_CONVERSIONS if row["arch"] >= 100 else 0
        assert row["conversions"] == expected, row


def test_nothing_spills_and_no_shared_memory_is_taken(compiled):
    for row in compiled:
        # 128 registers leave 16 warps an SM at the least.
        assert row["spilled"] == 0 and row["registers"] <= 128, row
        assert row["shared"] == 0 or row["rule"] == "4over6", row
