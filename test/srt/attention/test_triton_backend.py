"""Into how many parts a small batch's candidates are divided."""

import pytest
import torch

from sglang_dsv4_nvfp4.attention import triton_backend
from sglang_dsv4_nvfp4.attention.inputs import AttentionShape

CPU = torch.device("cpu")


@pytest.fixture
def many_sms(monkeypatch):
    monkeypatch.setattr(triton_backend, "sm_count", lambda device: 132)


def num_splits(num_tokens, blocks, num_heads=32):
    """Splits of the portable kernel, whose blocks have 32 candidates and heads."""
    shape = AttentionShape(num_tokens, num_heads, 32, 64, 32 * (blocks - 1), 64)
    return triton_backend.num_splits(shape, CPU, use_hopper=False)


def test_every_sm_gets_a_program(many_sms):
    assert num_splits(1, blocks=20) == 20
    assert num_splits(132, blocks=20) == 1
    assert num_splits(4096, blocks=20) == 1
    # Twice as many heads are twice as many programs.
    assert num_splits(33, blocks=20) == 4
    assert num_splits(33, blocks=20, num_heads=64) == 2


def test_no_more_parts_than_make_them_shorter(many_sms):
    """Of 20 blocks, 16 parts and 10 have two at the most."""
    assert num_splits(8, blocks=20) == 10


def test_one_block_less_is_not_worth_merging(many_sms):
    assert num_splits(64, blocks=3) == 1
    assert num_splits(44, blocks=3) == 3
    assert num_splits(1, blocks=2) == 1


def test_parts_are_no_more_than_the_merge_weighs(many_sms):
    assert triton_backend.MAX_SPLITS == 32
    assert num_splits(1, blocks=300) == 30


@pytest.mark.parametrize("num_tokens, expected", [(64, 1), (32, 3)])
def test_blocks_are_the_kernels_own(many_sms, num_tokens, expected):
    """Three of 64 candidates on Hopper, with 64 heads a program."""
    shape = AttentionShape(num_tokens, 64, 128, 64, 64, 2)
    assert triton_backend.num_splits(shape, CPU, use_hopper=True) == expected


def test_without_a_gpu_nothing_is_divided():
    assert num_splits(1, blocks=20) == 1
