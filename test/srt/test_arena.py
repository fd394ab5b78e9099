"""The arena: buckets that stay, and nothing new under capture."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_dsv4_nvfp4 import arena as arena_module
from sglang_dsv4_nvfp4.arena import Arena, bucket_size

CPU = torch.device("cpu")


@given(st.integers(1, 1 << 40))
def test_buckets_are_the_next_power_of_two(count):
    size = bucket_size(count)
    assert count <= size < 2 * count and size & (size - 1) == 0


def test_keys_dtypes_and_buckets_have_a_buffer_each():
    arena = Arena("test")
    taken = [
        arena.take(key, shape, dtype, CPU)
        for key in ("a", "b")
        for dtype in (torch.float32, torch.bfloat16)
        for shape in ((3, 5), (4, 4), (17,))
    ]
    assert len({tensor.data_ptr() for tensor in taken}) == len(arena) == 8
    assert all(tensor.is_contiguous() for tensor in taken)


def test_a_new_bucket_is_an_error_under_capture(monkeypatch):
    arena = Arena("scratch")
    warm = arena.take("lse", (64, 8), torch.float32, CPU)
    monkeypatch.setattr(arena_module, "is_capturing", lambda device: True)
    again = arena.take("lse", (63, 8), torch.float32, CPU)
    assert again.data_ptr() == warm.data_ptr()
    with pytest.raises(RuntimeError, match="scratch: a buffer of 1024 .*warmed up"):
        arena.take("lse", (65, 8), torch.float32, CPU)


def test_buffers_made_in_inference_mode_can_be_written_outside():
    arena = Arena("test")
    with torch.inference_mode():
        arena.take("x", (4,), torch.float32, CPU)
    arena.take("x", (4,), torch.float32, CPU).fill_(1)
