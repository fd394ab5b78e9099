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


@given(st.integers(1, 1 << 40), st.sampled_from([1, 2, 4]))
def test_finer_buckets_waste_less_and_stay_few(count, per_octave):
    size = bucket_size(count, per_octave)
    assert count <= size <= max(count * (1 + 1 / per_octave), count + 1)
    power = bucket_size(count)
    assert (size * 2 * per_octave) % power == 0


def test_a_smaller_bucket_shares_the_larger_ones_memory():
    """SGLang captures its largest batch first: one buffer then serves them all."""
    arena = Arena("test")
    largest = arena.take("x", (64, 100), torch.float32, CPU)
    for batch in (48, 32, 8, 1):
        taken = arena.take("x", (batch, 100), torch.float32, CPU)
        assert taken.data_ptr() == largest.data_ptr()
    assert len(arena) == 1


def test_a_bucket_keeps_its_memory_when_a_larger_one_comes():
    arena = Arena("test")
    pointers = [
        arena.take("x", (count,), torch.float32, CPU).data_ptr()
        for count in (8, 1000, 8, 100, 4096, 100)
    ]
    assert pointers[0] == pointers[2] and pointers[3] == pointers[5] == pointers[1]
    assert len(arena) == 3


def test_fill_runs_once_a_buffer():
    arena, filled = Arena("test"), []
    for count in (8, 5, 100, 7, 60):
        arena.take("x", (count,), torch.float32, CPU, fill=filled.append)
    assert [buffer.shape[0] for buffer in filled] == [8, 128]


def test_keys_dtypes_and_buckets_have_a_buffer_each():
    arena = Arena("test")
    taken = [
        arena.take(key, shape, dtype, CPU)
        for key in ("a", "b")
        for dtype in (torch.float32, torch.bfloat16)
        for shape in ((3, 5), (4, 4), (17,))
    ]
    # 15 and 16 elements share a bucket; 17 come later and need a buffer more.
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
