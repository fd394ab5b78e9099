#!/usr/bin/env python3
"""NVFP4 stores against SGLang's FP8 stores and against the staged path.

Usage: bench_store.py [--out DIR]

Prints a table and writes ``<device>.json`` to DIR (benchmark/store/results).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness

from sglang_dsv4_nvfp4.cli.models import PAGE_SIZE
from sglang_dsv4_nvfp4.cli.pools import build_pool, pool_class
from sglang_dsv4_nvfp4.cli.sandbox import environment_scope, hooked_sglang
from sglang_dsv4_nvfp4.config import SCALE_RULE_ENV, KVCacheFormat, ScaleRule

TOKENS = (1, 8, 64, 256, 1024, 4096, 16384, 32768)
EPS = 1e-6
MAX_POSITION = 65536
# Bytes of a row as it comes and as it is stored.
VALUE_BYTES = {torch.bfloat16: 1024, torch.float32: 2048}
STORED_BYTES = 384


class Bench:
    """Both pools, and inputs of every size."""

    def __init__(self) -> None:
        self.generator = torch.Generator("cuda").manual_seed(0)
        common = dict(
            device="cuda",
            compression_ratios=(0, 4, 128),
            num_slots=4 * max(TOKENS),
            # Compressed pools wide enough for a slot per row of the largest case.
            c4_size=4 * max(TOKENS),
            c128_size=4 * max(TOKENS),
            c4_state_pool_size=1,
            c128_state_pool_size=1,
        )
        self.fp8 = build_pool(pool_class(KVCacheFormat.FP8), **common)
        self.nvfp4 = build_pool(pool_class(KVCacheFormat.NVFP4), **common)
        self.weight = torch.ones(512, device="cuda", dtype=torch.bfloat16)
        angles = torch.rand(MAX_POSITION, 32, device="cuda", generator=self.generator)
        self.freqs = torch.polar(torch.ones_like(angles), angles)
        self.bandwidth = harness.copy_bandwidth()

    def inputs(self, tokens: int) -> list[dict]:
        """Input sets of random rows and shuffled, unique slots."""
        sets = []
        for _ in range(harness.num_input_sets(tokens * 1024)):
            rows = torch.randn(
                tokens, 512, device="cuda", generator=self.generator
            ).bfloat16()
            slots = torch.randperm(
                4 * max(TOKENS) - PAGE_SIZE, device="cuda", generator=self.generator
            )[:tokens]
            positions = torch.randint(
                0, MAX_POSITION, (tokens,), device="cuda", generator=self.generator
            )
            sets.append(
                {
                    "rows": rows,
                    "slots": slots,
                    "slots32": slots.int(),
                    "positions": positions,
                }
            )
        return sets

    def window_rows(self, tokens: int) -> list[dict]:
        """The fused window store against FP8's and against two staged paths."""
        from sglang.kernels.ops.attention.dsv4 import fused_norm_rope_inplace

        from sglang_dsv4_nvfp4.store import fused

        cache = self.nvfp4.swa_kv_pool.kernel_view(0)
        sets = self.inputs(tokens)

        def arguments(made: dict) -> dict:
            return dict(
                kv=made["rows"],
                kv_weight=self.weight,
                eps=EPS,
                freqs_cis=self.freqs,
                positions=made["positions"],
            )

        def store(made: dict) -> None:
            fused.store_window_rows(
                **arguments(made), slots=made["slots32"], cache=cache
            )

        def store_fp8(made: dict) -> None:
            self.fp8.set_swa_key_buffer_radix_fused_norm_rope(
                layer_id=0, swa_loc=made["slots32"], **arguments(made)
            )

        def two_launches(made: dict) -> None:
            fused_norm_rope_inplace(
                made["rows"], self.weight, EPS, self.freqs, made["positions"]
            )
            fused.append(made["rows"], made["slots32"], cache, unique_slots=True)

        def staged(made: dict) -> None:
            self.staged_window(made, cache)

        us = _time(sets, store, store_fp8, two_launches, staged)
        floor = tokens * (VALUE_BYTES[torch.bfloat16] + STORED_BYTES) / self.bandwidth
        return [
            harness.row("window", tokens, us[store], name, us[arm], floor * 1e6)
            for name, arm in (
                ("SGLang fused_k_norm_rope_flashmla (FP8)", store_fp8),
                ("two launches: norm-rope in place, append kernel", two_launches),
                ("staged store with the append kernel", staged),
            )
        ]

    def staged_window(self, made: dict, cache: torch.Tensor) -> None:
        """The staged path with this package's append, whose reference is PyTorch."""
        from sglang_dsv4_nvfp4.store import fused
        from sglang_dsv4_nvfp4.store.compress_plan import window_plan
        from sglang_dsv4_nvfp4.store.finish import finish_rows
        from sglang_dsv4_nvfp4.store.staging import WINDOW_KEY

        rows = finish_rows(
            made["rows"],
            window_plan(made["positions"]),
            norm_weight=self.weight,
            norm_eps=EPS,
            freq_cis=self.freqs,
            num_rows=len(made["rows"]),
            staging_key=WINDOW_KEY,
        )
        fused.append(rows, made["slots32"], cache, unique_slots=True)

    def compressed_rows(self, tokens: int, ratio: int, is_decode: bool) -> dict:
        """The fused compressed store against SGLang's in FP8; every row counts.

        Rows and weight are FP32, as the compressor has them.
        """
        from sglang.kernels.ops.attention.dsv4 import compress_norm_rope_store

        from sglang_dsv4_nvfp4.store import fused

        layer = {4: 1, 128: 2}[ratio]
        cache = getattr(self.nvfp4, f"c{ratio}_kv_pool").kernel_view(0)
        fp8_buffer = self.fp8.get_extra_key_buffer(layer).view(torch.uint8)
        fp8_page_size = self.fp8.get_extra_key_page_size(layer)
        sets = self.inputs(tokens)
        for made in sets:
            made["rows"] = made["rows"].float()
            made["plan"] = _full_plan(ratio, made["positions"], is_decode)

        def arguments(made: dict) -> dict:
            return dict(
                norm_weight=self.weight.float(),
                norm_eps=EPS,
                freq_cis=self.freqs,
                out_loc=made["slots"],
            )

        def store(made: dict) -> None:
            fused.store_compressed_rows(
                made["rows"], made["plan"], **made["arguments"], cache=cache
            )

        def store_fp8(made: dict) -> None:
            compress_norm_rope_store(
                made["rows"],
                made["plan"],
                **made["arguments"],
                kvcache=fp8_buffer,
                page_size=fp8_page_size,
            )

        for made in sets:
            made["arguments"] = arguments(made)
        us = _time(sets, store, store_fp8)
        floor = tokens * (VALUE_BYTES[torch.float32] + STORED_BYTES) / self.bandwidth
        return harness.row(
            f"compressed c{ratio} {'decode' if is_decode else 'prefill'}",
            tokens,
            us[store],
            "SGLang compress_norm_rope_store (FP8)",
            us[store_fp8],
            floor * 1e6,
        )

    def append_rows(self, tokens: int) -> list[dict]:
        """What looking for equal slots costs the append, and what 4over6 costs."""
        from sglang_dsv4_nvfp4.store import fused

        cache = self.nvfp4.swa_kv_pool.kernel_view(0)

        def unique(made: dict) -> None:
            fused.append(made["rows"], made["slots"], cache, unique_slots=True)

        def settled(made: dict) -> None:
            fused.append(made["rows"], made["slots"], cache)

        def four_over_six(made: dict) -> None:
            with environment_scope(SCALE_RULE_ENV, ScaleRule.FOUR_OVER_SIX.value):
                unique(made)

        us = _time(self.inputs(tokens), unique, settled, four_over_six)
        floor = tokens * (VALUE_BYTES[torch.bfloat16] + STORED_BYTES) / self.bandwidth
        return [
            harness.row(case, tokens, us[arm], "append", us[unique], floor * 1e6)
            for case, arm in (
                ("append, equal slots settled", settled),
                ("append, 4over6", four_over_six),
            )
        ]

    def extra_memory(self, tokens: int) -> dict:
        """Bytes that one store call allocates at its peak, fused and staged."""
        from sglang_dsv4_nvfp4.store import fused
        from sglang_dsv4_nvfp4.store.staging import staging

        cache = self.nvfp4.swa_kv_pool.kernel_view(0)
        made, *_ = self.inputs(tokens)

        def peak(run) -> int:
            run()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            run()
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated() - before

        fused_bytes = peak(
            lambda: fused.store_window_rows(
                kv=made["rows"],
                kv_weight=self.weight,
                eps=EPS,
                freqs_cis=self.freqs,
                positions=made["positions"],
                slots=made["slots32"],
                cache=cache,
            )
        )
        staged_bytes = peak(lambda: self.staged_window(made, cache))
        staging_bytes = staging.rows(0, tokens, cache.device).numel() * 2
        return {
            "tokens": tokens,
            "fused_bytes": fused_bytes,
            "staged_temporary_bytes": staged_bytes,
            "staged_arena_bytes": staging_bytes,
        }


def _time(sets: list[dict], *arms: Callable[[dict], None]) -> dict:
    """Median microseconds of each arm over the input sets."""
    runs = {arm: [functools.partial(arm, made) for made in sets] for arm in arms}
    return harness.time_arms(runs)


def _full_plan(ratio: int, positions: torch.Tensor, is_decode: bool):
    from sglang.kernels.ops.attention.dsv4 import (
        CompressorDecodePlan,
        CompressorPrefillPlan,
    )

    words = torch.zeros(len(positions), 4, dtype=torch.int32, device="cuda")
    words[:, 0] = (positions // ratio + 1) * ratio
    rows = words.view(torch.uint8)
    if is_decode:
        return CompressorDecodePlan(ratio, rows)
    words[:, 1] = torch.arange(len(positions), device="cuda")
    writes = torch.empty((0, 8), dtype=torch.uint8, device="cuda")
    return CompressorPrefillPlan(ratio, rows, writes)


def main() -> int:
    out = harness.out_folder(__file__, __doc__)
    with hooked_sglang(max_running_requests=64, chunked_prefill_size=8192):
        bench = Bench()
        rows = []
        for tokens in TOKENS:
            rows += bench.window_rows(tokens)
            for ratio in (4, 128):
                for is_decode in (True, False):
                    rows.append(bench.compressed_rows(tokens, ratio, is_decode))
            rows += bench.append_rows(tokens)
            print(f"{tokens} tokens done", flush=True)
        memory = bench.extra_memory(max(TOKENS))
        print(harness.table(rows))
        print(f"device copy: {bench.bandwidth / 1e12:.2f} TB/s")
        print(f"extra memory of a window store: {memory}")
        harness.write(
            out,
            {"copy_bytes_per_second": bench.bandwidth},
            rows,
            extra_memory=memory,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
