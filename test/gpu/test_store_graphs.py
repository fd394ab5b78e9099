"""The stores inside CUDA graphs: replays keep writing the right bytes.

Any CUDA device. Between capture and replay the same stores run eagerly at larger
sizes and memory is allocated and freed, which is what moves a careless buffer.
"""

import pytest
import torch
from support.plans import INVALID_SEQ_LEN, decode_plan, prefill_plan
from support.pools import PAGE_SIZE, build_pool, random_rows
from support.references import rope_table

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"
)

EPS = 1e-6
NUM_PAGES = 40
BATCH = 24


class WindowStore:
    """A step's rows into the sliding window."""

    buffer_of = "swa_kv_pool"

    def __init__(self, generator, device, batch):
        self.rows = random_rows(generator, batch, device)
        order = torch.randperm(NUM_PAGES * PAGE_SIZE, generator=generator)
        self.slots = order[:batch].int().to(device)
        self.positions = torch.arange(batch, device=device)

    def run(self, pool, weight, freqs):
        pool.set_swa_key_buffer_radix_fused_norm_rope(
            0, self.slots, self.rows, weight, EPS, freqs, self.positions
        )

    def redraw(self, generator):
        self.rows.copy_(random_rows(generator, len(self.rows)))


class FinishedRows(WindowStore):
    """BF16 rows into the sliding window, as the CP path stores them."""

    def run(self, pool, weight, freqs):
        pool.set_swa_key_buffer_radix_fused(0, self.slots, self.rows)


class CompressedDecode:
    """One plan row per request, of which some end a group."""

    buffer_of = "c4_kv_pool"
    ratio, layer = 4, 1

    def __init__(self, generator, device, batch):
        # The compressor's rows are FP32.
        self.rows = random_rows(generator, batch, device).float()
        self.out_loc = torch.randperm(NUM_PAGES * 64, generator=generator)[:batch]
        self.out_loc = self.out_loc.to(device)
        self.plan = self.make_plan(generator, device, batch)

    def make_plan(self, generator, device, batch):
        lengths = torch.randint(1, 400, (batch,), generator=generator)
        lengths[::3] = self.ratio * (1 + lengths[::3] % 8)
        return decode_plan(self.ratio, lengths.tolist(), device)

    def run(self, pool, weight, freqs):
        from sglang.srt.layers.attention.dsv4 import compressor_v2

        compressor_v2.compress_norm_rope_store(
            self.rows,
            self.plan,
            norm_weight=weight,
            norm_eps=EPS,
            freq_cis=freqs,
            out_loc=self.out_loc,
            kvcache=pool.get_extra_key_buffer(self.layer),
            page_size=pool.get_extra_key_page_size(self.layer),
            layout=pool.get_extra_key_layout(self.layer),
        )

    def redraw(self, generator):
        batch, device = len(self.rows), self.rows.device
        self.rows.copy_(random_rows(generator, batch))
        self.plan.copy_(self.make_plan(generator, device, batch))


class CompressedPrefill(CompressedDecode):
    """Plan rows by ragged token, padded as a captured prefill pads them."""

    def make_plan(self, generator, device, batch):
        tokens = torch.randperm(batch, generator=generator)[: batch // 2].tolist()
        rows = [(self.ratio * (token + 1), token) for token in tokens]
        rows += [(INVALID_SEQ_LEN, 0)] * (batch - len(rows))
        return prefill_plan(self.ratio, rows, device)


class CompressedDecodeC128(CompressedDecode):
    buffer_of = "c128_kv_pool"
    ratio, layer = 128, 2

    def __init__(self, generator, device, batch):
        super().__init__(generator, device, batch)
        self.out_loc = torch.randperm(NUM_PAGES * 2, generator=generator)
        self.out_loc = self.out_loc[:batch].to(device)


@pytest.mark.parametrize(
    "store_cls",
    [
        WindowStore,
        FinishedRows,
        CompressedDecode,
        CompressedPrefill,
        CompressedDecodeC128,
    ],
)
@pytest.mark.parametrize("mode", ["fused", "staged"])
def test_replays_write_what_eager_writes(
    device, generator, monkeypatch, mode, store_cls
):
    monkeypatch.setenv("SGLANG_SM120_NVFP4_STORE", mode)
    weight = (1 + 0.1 * torch.randn(512, generator=generator)).bfloat16().to(device)
    freqs = rope_table(4096).to(device)
    captured, eager = (build_pool(device, num_pages=NUM_PAGES) for _ in range(2))
    store = store_cls(generator, device, BATCH)
    store.run(captured, weight, freqs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        store.run(captured, weight, freqs)

    other = build_pool(device, num_pages=NUM_PAGES)
    for batch in (70, BATCH, 33):
        larger = store_cls(generator, device, batch)
        larger.run(other, weight, freqs)
        garbage = [torch.full((batch * 4096,), 7.0, device=device) for _ in range(8)]
        del garbage, larger

    for _ in range(3):
        store.redraw(generator)
        buffers = [
            getattr(pool, store.buffer_of).kv_buffer[0] for pool in (captured, eager)
        ]
        for buffer in buffers:
            buffer.zero_()
        graph.replay()
        store.run(eager, weight, freqs)
        assert torch.equal(*buffers)
        assert buffers[0].any()


@pytest.mark.parametrize(
    "store_cls",
    [WindowStore, CompressedDecode, CompressedPrefill, CompressedDecodeC128],
)
def test_both_stores_hold_the_same_rows(device, generator, monkeypatch, store_cls):
    """Up to the order of the norm's sum: a few values round to a neighbour."""
    weight = (1 + 0.1 * torch.randn(512, generator=generator)).bfloat16().to(device)
    freqs = rope_table(4096).to(device)
    store = store_cls(generator, device, 70)
    buffers = []
    for mode in ("fused", "staged"):
        monkeypatch.setenv("SGLANG_SM120_NVFP4_STORE", mode)
        pool = build_pool(device, num_pages=NUM_PAGES)
        store.run(pool, weight, freqs)
        buffers.append(getattr(pool, store.buffer_of).kv_buffer[0])
    written = (buffers[0] != 0) | (buffers[1] != 0)
    assert written.any()
    assert (buffers[0] != buffers[1])[written].float().mean() < 1e-3


def test_an_unwarmed_batch_under_capture_is_an_error(device, generator):
    from sglang_dsv4_nvfp4.store.staging import StagingArena

    staging = StagingArena()
    with (
        pytest.raises(RuntimeError, match="warmed up before CUDA graph capture"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        staging.rows(4, 10, torch.device(device))
    assert len(staging) == 0
