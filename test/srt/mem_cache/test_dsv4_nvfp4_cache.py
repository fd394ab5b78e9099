"""NVFP4 cache regressions of DeepSeek-V4: staging, format, gate, slot addressing.

Each case pins a way in which this cache has been, or nearly was, wrong.
"""

import pytest
import torch
from support.plans import decode_plan
from support.pools import build_pool, random_rows
from support.references import attention_reference

from sglang_dsv4_nvfp4 import layout
from sglang_dsv4_nvfp4.attention.decision import Decision, Phase
from sglang_dsv4_nvfp4.cli import flashinfer_rounding
from sglang_dsv4_nvfp4.config import KERNEL_ENV, Kernel
from sglang_dsv4_nvfp4.kv_gate import is_nvfp4_kv_cache
from sglang_dsv4_nvfp4.quantize import dequantize_rows, quantize_rows
from sglang_dsv4_nvfp4.store.staged import append
from sglang_dsv4_nvfp4.store.staging import StagingArena

CPU = torch.device("cpu")
FORMAT = "SGLANG_SM120_KV_CACHE_FORMAT"


class TestStaging:
    """A captured graph replays the addresses that it saw."""

    def test_pointer_survives_a_larger_request(self):
        staging = StagingArena()
        small = staging.rows(4, 60, CPU).data_ptr()
        staging.rows(4, 5000, CPU)
        assert staging.rows(4, 60, CPU).data_ptr() == small

    def test_sizes_share_power_of_two_buckets(self):
        staging = StagingArena()
        small = staging.rows(4, 64, CPU).data_ptr()
        pointers = {staging.rows(4, rows, CPU).data_ptr() for rows in range(65, 129)}
        assert len(pointers) == 1 and small not in pointers
        assert staging.rows(4, 129, CPU).data_ptr() not in pointers
        assert len(staging) == 3

    def test_many_sizes_make_few_buffers(self):
        staging = StagingArena()
        for rows in range(1, 1025):
            staging.rows(4, rows, CPU)
        # Buckets of 512 values (one row) to 2 ** 19.
        assert len(staging) == 11

    def test_ratios_do_not_share_a_buffer(self):
        staging = StagingArena()
        pointers = {staging.rows(ratio, 8, CPU).data_ptr() for ratio in (0, 4, 128)}
        assert len(pointers) == 3

    def test_rows_are_zeroed_on_every_call(self):
        staging = StagingArena()
        staging.rows(4, 8, CPU).fill_(float("nan"))
        assert (staging.rows(4, 8, CPU) == 0).all()
        assert (staging.rows(4, 5, CPU) == 0).all()

    def test_out_loc_is_an_int64_identity(self):
        out_loc = StagingArena().identity_out_loc(128, 33, CPU)
        # SGLang's store reads 8 bytes an entry, whatever the tensor says.
        assert out_loc.dtype == torch.int64
        assert torch.equal(out_loc, torch.arange(33))

    def test_out_loc_stays_where_it_was(self):
        staging = StagingArena()
        first = staging.identity_out_loc(4, 33, CPU).data_ptr()
        staging.identity_out_loc(4, 4096, CPU)
        assert staging.identity_out_loc(4, 40, CPU).data_ptr() == first

    def test_uncounted_rows_never_reach_the_pool(self, device, generator):
        from sglang.kernels.ops.attention.dsv4 import compress_norm_rope_store

        pool = build_pool(device)
        buffer = pool.get_extra_key_buffer(1)
        buffer.fill_(0x5A)
        freqs = torch.polar(torch.ones(64, 32), torch.zeros(64, 32)).to(device)
        compress_norm_rope_store(
            random_rows(generator, 3, device),
            # Lengths 7 and 9 are inside a group of four; 8 ends one.
            decode_plan(4, [7, 8, 9], device),
            norm_weight=torch.ones(512, device=device).bfloat16(),
            norm_eps=1e-6,
            freq_cis=freqs,
            out_loc=torch.tensor([3, 70, 5], device=device),
            kvcache=buffer,
            page_size=pool.get_extra_key_page_size(1),
            layout=pool.get_extra_key_layout(1),
        )
        page = layout.kernel_view(buffer, 64).view(-1, 64 * 384)
        changed = (page != 0x5A).nonzero()
        assert changed[:, 0].unique().tolist() == [1]
        entry = 70 - 64
        columns = changed[:, 1]
        data = (columns >= entry * 352) & (columns < (entry + 1) * 352)
        scale_base = 64 * 352 + entry * 32
        scales = (columns >= scale_base) & (columns < scale_base + 32)
        assert (data | scales).all() and data.any() and scales.any()


class TestFormat:
    def test_a_token_is_384_bytes(self):
        assert layout.BYTES_PER_TOKEN == 384
        assert layout.DATA_BYTES == 352 and layout.SCALE_BYTES == 32
        assert layout.NVFP4_KV_LAYOUT.page_bytes(256) == 256 * 384

    @pytest.mark.parametrize(
        ("page_size", "kernel_page_size"), [(256, 64), (64, 64), (2, 2)]
    )
    def test_view_shape_and_strides(self, page_size, kernel_page_size):
        buffer = torch.zeros(6, page_size * 384, dtype=torch.uint8)
        view = layout.kernel_view(buffer, page_size)
        pages = 6 * page_size // kernel_page_size
        assert view.shape == (pages, kernel_page_size, 384)
        assert view.stride() == (kernel_page_size * 384, 384, 1)
        assert view.data_ptr() == buffer.data_ptr()

    def test_an_fp8_view_is_read_as_bytes(self):
        buffer = torch.zeros(2, 64 * 384, dtype=torch.uint8)
        seen = buffer.view(torch.float8_e4m3fn).view(2, 64, 1, 384)
        view = layout.kernel_view(seen, 64)
        assert view.dtype == torch.uint8 and view.data_ptr() == buffer.data_ptr()

    @pytest.mark.parametrize(
        ("buffer", "page_size"),
        [
            (torch.zeros(2, 64 * 584, dtype=torch.uint8), 64),
            (torch.zeros(2, 64 * 384, dtype=torch.uint8), 32),
            (torch.zeros(2, 64 * 384, dtype=torch.bfloat16), 64),
            (torch.zeros(2, 64 * 400, dtype=torch.uint8)[:, : 64 * 384], 64),
            (torch.zeros(2, 96 * 384, dtype=torch.uint8), 96),
        ],
    )
    def test_what_is_not_packed_pages_is_refused(self, buffer, page_size):
        with pytest.raises(ValueError, match=r"NVFP4 cache|no multiple"):
            layout.kernel_view(buffer, page_size)


class TestGate:
    @pytest.mark.parametrize("on_sm120", [True, False])
    def test_fp8_is_off_anywhere(self, monkeypatch, on_sm120):
        from sglang.srt.runtime_context import override_platform

        for value in ("fp8", ""):
            monkeypatch.setenv(FORMAT, value)
            with override_platform(is_sm120=on_sm120):
                assert is_nvfp4_kv_cache() is False

    @pytest.mark.parametrize("capability", [(12, 0), (12, 1)])
    def test_nvfp4_is_on_for_sm120_and_sm121(self, monkeypatch, capability):
        from sglang.srt.runtime_context import override_platform
        from sglang.srt.utils import common

        monkeypatch.setenv(FORMAT, "nvfp4")
        # SGLang's own probe decides, from a capability of either card.
        monkeypatch.setattr(common, "is_cuda", lambda: True)
        monkeypatch.setattr(
            common, "get_device_sm", lambda: capability[0] * 10 + capability[1]
        )
        probe = common.is_sm120_supported.__wrapped__
        with override_platform(is_sm120=probe()):
            assert is_nvfp4_kv_cache() is True

    @pytest.mark.parametrize("capability", [(9, 0), (10, 0), (11, 0)])
    def test_nvfp4_elsewhere_names_what_it_needs_and_what_it_found(
        self, monkeypatch, capability
    ):
        from sglang.srt.runtime_context import override_platform

        monkeypatch.setenv(FORMAT, "nvfp4")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Something")
        with override_platform(is_sm120=False), pytest.raises(ValueError) as refusal:
            is_nvfp4_kv_cache()
        message = str(refusal.value)
        found = f"NVIDIA Something (SM{capability[0]}{capability[1]}"
        for mention in ("SM120", "SM121", found):
            assert mention in message

    def test_nvfp4_without_a_device_says_so(self, monkeypatch):
        from sglang.srt.runtime_context import override_platform

        monkeypatch.setenv(FORMAT, "nvfp4")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with (
            override_platform(is_sm120=False),
            pytest.raises(ValueError, match="no CUDA device"),
        ):
            is_nvfp4_kv_cache()


def _kernels():
    sm120 = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 12
    return [
        Kernel.TORCH,
        Kernel.TRITON,
        *(
            pytest.param(
                kernel,
                marks=pytest.mark.skipif(
                    not sm120, reason="needs an SM120 or SM121 GPU"
                ),
            )
            for kernel in (Kernel.SPARSE, Kernel.CAKE)
        ),
    ]


def _cosine(output, expected):
    return torch.nn.functional.cosine_similarity(
        output.double().flatten(), expected.double().flatten(), dim=0
    )


class TestSlotAddressing:
    """A slip in slots, pages or strides makes attention read another row, which the
    BF16 reference notices: each row points in a direction of its own."""

    HEADS, TOKENS = 64, 5

    @pytest.mark.parametrize("kernel", _kernels())
    def test_two_shuffled_chunks_read_back_through_attention(
        self, device, generator, monkeypatch, kernel
    ):
        from sglang.kernels.ops.attention.flash_mla_sm120 import (
            flash_mla_with_kvcache_sm120,
        )

        monkeypatch.setenv(KERNEL_ENV, kernel.value)
        main = self._fill(generator, device, page_size=256, num_rows=256)
        extra = self._fill(generator, device, page_size=2, num_rows=128)
        main_indices, main_rows = self._choose(generator, main, 128)
        extra_indices, extra_rows = self._choose(generator, extra, 64)
        q = torch.randn(self.TOKENS, 1, self.HEADS, 512, generator=generator)
        q = q.bfloat16().to(device)
        sink = torch.randn(self.HEADS, generator=generator).to(device)
        output, _ = flash_mla_with_kvcache_sm120(
            q=q,
            k_cache=main[0],
            indices=main_indices.unsqueeze(1),
            topk_length=torch.full((self.TOKENS,), 128).int().to(device),
            attn_sink=sink,
            head_dim_v=512,
            softmax_scale=512**-0.5,
            extra_k_cache=extra[0],
            extra_indices_in_kvcache=extra_indices.unsqueeze(1),
            extra_topk_length=torch.full((self.TOKENS,), 64).int().to(device),
        )
        rows = torch.cat([main_rows, extra_rows], dim=1).cpu()
        q, sink = q[:, 0].cpu(), sink.cpu()
        expected, _ = attention_reference(q, rows, sink, 512**-0.5)
        # Quantizing alone costs this much; one wrong row in a hundred costs more.
        least = 0.99
        if kernel in (Kernel.SPARSE, Kernel.CAKE):
            # These round queries, weights and values too; about so, with as much spare.
            stored = dequantize_rows(*quantize_rows(rows.flatten(0, 1)))
            rounded = flashinfer_rounding.attend(
                q,
                stored.view(rows.shape),
                torch.ones(rows.shape[:2], dtype=torch.bool),
                sink,
                512**-0.5,
                Decision(kernel, Phase.DECODE),
            )
            least = _cosine(rounded, expected) - 0.005
        assert _cosine(output[:, 0].cpu(), expected) > least

    def _fill(self, generator, device, *, page_size, num_rows):
        """A half-full cache as SGLang views it, its slots, and the rows they hold."""
        rows = random_rows(generator, num_rows, device)
        num_slots = 2 * num_rows
        buffer = torch.zeros(
            num_slots // page_size, page_size * 384, dtype=torch.uint8, device=device
        )
        slots = torch.randperm(num_slots, generator=generator)[:num_rows].to(device)
        half = num_rows // 2
        for chunk in (slice(half, None), slice(None, half)):
            # On an SM120 this is FlashInfer's writer.
            append(rows[chunk], slots[chunk], layout.kernel_view(buffer, page_size))
        k_cache = buffer.view(torch.float8_e4m3fn).view(-1, page_size, 1, 384)
        return k_cache, slots, rows

    def _choose(self, generator, cache, width):
        """``width`` candidates a token: their slots, and the rows they should be."""
        _, slots, rows = cache
        chosen = torch.stack(
            [
                torch.randperm(len(rows), generator=generator)[:width]
                for _ in range(self.TOKENS)
            ]
        ).to(rows.device)
        return slots[chosen].int(), rows[chosen]
