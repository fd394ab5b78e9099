"""The store kernels compiled for GPUs that are not here."""

import pytest
from support.processes import ask_support

# Half a group a lane, two words of codes: four conversions a word.
NATIVE_CONVERSIONS = 8


@pytest.fixture(scope="module")
def compiled():
    return ask_support("compile_store.py")


def test_every_kernel_compiles_for_every_target(compiled):
    assert len(compiled) == 5 * 4 * 2
    assert {row["arch"] for row in compiled} == {90, 100, 120, 121}


def test_blackwell_converts_by_its_instruction_and_hopper_cannot(compiled):
    for row in compiled:
        if row["arch"] >= 100:
            assert row["conversions"] >= NATIVE_CONVERSIONS, row
        else:
            assert row["conversions"] == 0, row


def test_nothing_spills_and_little_shared_memory_is_taken(compiled):
    for row in compiled:
        # 128 registers leave 16 warps an SM at the least.
        assert row["spilled"] == 0 and row["registers"] <= 128, row
        assert row["shared"] <= 4096, row


def test_products_are_rounded_before_they_are_added(compiled):
    """A fused multiply-add rounds four scales of amax / 6 the other way."""
    for row in compiled:
        inverses = 3 if row["rule"] == "4over6" else 1
        # Two a reciprocal, for each group that a lane has a part of.
        assert row["fused"] % (2 * inverses) == 0 and row["fused"] <= 8 * inverses, row
