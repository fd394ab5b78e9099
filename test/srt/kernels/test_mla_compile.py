"""The attention kernels compiled for GPUs that are not here."""

import pytest
from support.flashinfer_host import MAX_SHARED_BYTES
from support.processes import ask_support

# What a block may have on Hopper.
HOPPER_SHARED_BYTES = 227 * 1024
# What a thread has on every GPU; the rest is spilled to local memory, of which some words
# are accepted (a tile of 64 heads would spill over 2 KB for sm_120).
MAX_REGISTERS = 255
MAX_SPILLED_BYTES = 128


@pytest.fixture(scope="module")
def compiled():
    return ask_support("compile_mla.py")


def of(compiled, kernel):
    return [row for row in compiled if row["kernel"] == kernel]


def test_every_kernel_compiles_for_every_target(compiled):
    targets = {(row["arch"], row["heads"]) for row in of(compiled, "portable")}
    archs = (80, 90, 100, 120, 121)
    assert targets == {(arch, heads) for arch in archs for heads in (16, 64)}
    assert {row["arch"] for row in of(compiled, "merge")} == set(archs)
    assert [row["arch"] for row in of(compiled, "hopper")] == [90]


def test_the_portable_kernel_fits_an_sm120(compiled):
    for row in of(compiled, "portable") + of(compiled, "merge"):
        assert row["shared"] <= MAX_SHARED_BYTES, row
        assert row["registers"] <= MAX_REGISTERS, row
        assert row["spilled"] <= MAX_SPILLED_BYTES, row


def test_two_blocks_of_few_heads_fit_an_sm120_at_once(compiled):
    """It has 100 KB of shared memory, of which a block's own management takes 1."""
    for row in of(compiled, "portable"):
        if row["heads"] == 16:
            assert 2 * (row["shared"] + 1024) <= 100 * 1024, row


def test_products_run_on_tensor_cores(compiled):
    for row in of(compiled, "portable"):
        assert row["tensor_core"], row
    assert of(compiled, "hopper")[0]["tensor_core"] == ["wgmma.mma_async"]


def test_the_hopper_kernel_fits(compiled):
    (row,) = of(compiled, "hopper")
    assert row["shared"] <= HOPPER_SHARED_BYTES
    # Twelve warps share the register file.
    assert row["registers"] <= 168 and row["spilled"] <= 32, row
