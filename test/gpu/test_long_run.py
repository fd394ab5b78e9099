"""Twenty thousand stores and attention calls: nothing grows, and old graphs replay."""

import itertools
import random

import pytest
import torch
from support.pools import PAGE_SIZE, build_pool, random_rows
from support.references import rope_table

from sglang_dsv4_nvfp4.attention import dispatch, scratch
from sglang_dsv4_nvfp4.config import KERNEL_ENV, Kernel
from sglang_dsv4_nvfp4.store.staging import staging

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"
)

STEPS = 10_000
NUM_PAGES = 40
MAX_TOKENS = 300
HEADS = (16, 64)
# Width, ratio and layer: c4's entries, and c128's as a context grows.
EXTRAS = ((512, 4, 1), (64, 128, 2), (192, 128, 2))
WINDOW = 128


class Step:
    """One layer's store and attention, on views of buffers that never move."""

    def __init__(self, generator, device):
        self.pool = build_pool(device, num_pages=NUM_PAGES)
        self.slots = NUM_PAGES * PAGE_SIZE
        self.rows = random_rows(generator, MAX_TOKENS, device)
        self.queries = torch.randn(MAX_TOKENS, 1, 64, 512, generator=generator)
        self.queries = self.queries.bfloat16().to(device)
        self.sink = torch.zeros(64, device=device)
        self.weight = torch.ones(512, dtype=torch.bfloat16, device=device)
        self.freqs = rope_table(4096).to(device)
        self.positions = torch.arange(MAX_TOKENS, device=device)
        order = torch.randperm(self.slots, generator=generator)
        self.order = order.int().to(device)
        self.entries = torch.arange(512, dtype=torch.int32, device=device)

    def run(self, count, heads, extra, first=0):
        self.store(count)
        return self.attend(count, heads, *extra, first)

    def store(self, count):
        self.pool.set_swa_key_buffer_radix_fused_norm_rope(
            0,
            self.order[:count],
            self.rows[:count],
            self.weight,
            1e-6,
            self.freqs,
            self.positions[:count],
        )

    def attend(self, count, heads, extra_topk, ratio, extra_layer, first):
        from sglang.kernels.ops.attention.flash_mla_sm120 import (
            flash_mla_with_kvcache_sm120,
        )

        def candidates(num_slots, width):
            slots = (first + self.entries[:width]) % num_slots
            return slots.expand(count, 1, -1).contiguous()

        extra_slots = self.slots // ratio
        output, _ = flash_mla_with_kvcache_sm120(
            q=self.queries[:count, :, :heads],
            k_cache=self._cache(self.pool.get_swa_key_buffer_radix(0), PAGE_SIZE),
            indices=candidates(self.slots, WINDOW),
            head_dim_v=512,
            softmax_scale=512**-0.5,
            attn_sink=self.sink[:heads],
            extra_k_cache=self._cache(
                self.pool.get_extra_key_buffer(extra_layer),
                self.pool.get_extra_key_page_size(extra_layer),
            ),
            extra_indices_in_kvcache=candidates(extra_slots, extra_topk),
        )
        return output

    def _cache(self, buffer, page_size):
        return buffer.view(torch.uint8).view(len(buffer), page_size, 1, -1)


@pytest.fixture
def step(device, generator, monkeypatch):
    monkeypatch.setenv(KERNEL_ENV, Kernel.TRITON)
    made = Step(generator, device)
    # Every page has rows before it is read.
    everything = random_rows(generator, made.slots, device)
    made.pool.set_swa_key_buffer_radix_fused(0, made.order, everything)
    for layer, slots in ((1, made.slots // 4), (2, made.slots // 128)):
        slots = torch.arange(slots, device=device, dtype=torch.int32)
        made.pool.set_extra_key_buffer_fused(layer, slots, everything[: len(slots)])
    return made


def held():
    """Buffers, decisions and bytes that the process keeps."""
    torch.cuda.synchronize()
    return {
        "scratch": len(scratch.arena),
        "staging": len(staging),
        "decisions": len(dispatch.planner),
        "bytes": torch.cuda.memory_allocated(),
    }


def test_nothing_grows_and_old_graphs_replay(step):
    draws = random.Random(0)
    # From here on every store writes again what is there.
    step.store(MAX_TOKENS)
    expected = step.run(24, 64, EXTRAS[0]).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = step.run(24, 64, EXTRAS[0])
    shapes = list(itertools.product(range(1, MAX_TOKENS + 1), HEADS, EXTRAS))
    for shape in shapes:
        step.run(*shape)
    warm = held()
    for _ in range(STEPS - len(shapes)):
        step.run(*draws.choice(shapes), first=draws.randrange(step.slots))
    assert held() == warm
    assert warm["decisions"] <= len(HEADS) * len(EXTRAS) * 100
    replayed.zero_()
    graph.replay()
    torch.testing.assert_close(replayed, expected, atol=0, rtol=0)
