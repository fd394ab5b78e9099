"""Prefill and decode servers: what the transfer moves, and which peers it refuses.

A transfer is simulated as an engine does it: item ``page`` of each registered buffer is
``item_len`` bytes at ``pointer + page * item_len``, and nothing else is known of it.
"""

import ctypes
import json
import threading
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
import torch
from support.pools import build_pool, fp8, random_rows

from sglang_dsv4_nvfp4.cli.models import PAGE_SIZE
from sglang_dsv4_nvfp4.quantize import dequantize

NUM_PAGES = 5
# Where the peer keeps the pages that it receives.
PAGES = {1: 4, 2: 1, 4: 3}
CACHES = ("swa_kv_pool", "c4_kv_pool", "c128_kv_pool")


@pytest.fixture
def sender(device, generator):
    pool = build_pool("cpu", num_pages=NUM_PAGES)
    for name in CACHES:
        for layer, buffer in enumerate(getattr(pool, name).kv_buffer):
            view = getattr(pool, name).kernel_view(layer)
            slots = torch.arange(view.shape[0] * view.shape[1])
            rows = random_rows(generator, len(slots))
            getattr(pool, name).set_key_buffer_fused(layer, slots, rows)
            assert buffer.any()
    return pool


@pytest.fixture
def receiver(device):
    return build_pool("cpu", num_pages=NUM_PAGES)


def registrations(pool):
    """Pointer, length and item of every buffer of latents, as the pool gives them.

    Compressor states travel with the window; they are SGLang's own in both formats.
    """
    window = len(pool.swa_kv_pool.kv_buffer)
    state = [part[:window] for part in pool.get_state_buf_infos()]
    return [
        *zip(*pool.get_contiguous_buf_infos(), strict=True),
        *zip(*state, strict=True),
    ]


def transfer(sender, receiver):
    """Move ``PAGES`` from pool to pool."""
    for (source, length, item), (target, target_length, target_item) in zip(
        registrations(sender), registrations(receiver), strict=True
    ):
        assert item == target_item and length == target_length
        for page, to in PAGES.items():
            assert (page + 1) * item <= length and (to + 1) * item <= length
            ctypes.memmove(target + to * item, source + page * item, item)


def test_a_transfer_moves_whole_pages_and_nothing_else(sender, receiver):
    transfer(sender, receiver)
    for name in CACHES:
        buffers = zip(
            getattr(sender, name).kv_buffer,
            getattr(receiver, name).kv_buffer,
            strict=True,
        )
        for sent, received in buffers:
            for page, to in PAGES.items():
                assert torch.equal(received[to], sent[page])
            others = set(range(len(received))) - set(PAGES.values())
            assert not received[sorted(others)].any()


def test_received_pages_read_as_the_rows_that_were_sent(sender, receiver):
    transfer(sender, receiver)
    for name, ratio in zip(CACHES, (1, 4, 128), strict=True):
        entries = torch.arange(PAGE_SIZE // ratio)
        for page, to in PAGES.items():
            rows = [
                dequantize(
                    getattr(pool, name).kernel_view(0), at * len(entries) + entries
                )
                for pool, at in ((sender, page), (receiver, to))
            ]
            assert rows[0].any() and torch.equal(*rows)


def test_every_cache_of_every_layer_is_registered_once(sender):
    pointers = [pointer for pointer, _, _ in registrations(sender)]
    for name in CACHES:
        for buffer in getattr(sender, name).kv_buffer:
            assert pointers.count(buffer.data_ptr()) == 1


@pytest.fixture
def bootstrap():
    """A prefill server's bootstrap endpoint that answers with its topology."""
    answer = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield answer, f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def decode_manager(pool):
    """As much of SGLang's manager as its handshake reads."""
    from sglang.srt.disaggregation.common.conn import CommonKVManager

    manager = object.__new__(CommonKVManager)
    manager.__dict__.update(
        prefill_info_table={},
        kv_args=SimpleNamespace(page_size=PAGE_SIZE, state_types=(), engine_rank=0),
        kv_cache_dtype_str="fp8_e4m3",
        attn_tp_size=1,
        kv_layout=pool.pd_kv_layout(),
        dsv41_spec_layout=None,
    )
    return manager


def test_a_peer_of_another_format_is_refused_at_the_handshake(
    device, receiver, bootstrap
):
    answer, address = bootstrap
    with fp8():
        stock = build_pool("cpu", num_pages=1)
    answer.update(
        attn_tp_size=1,
        attn_cp_size=1,
        dp_size=1,
        pp_size=1,
        page_size=PAGE_SIZE,
        kv_cache_dtype="fp8_e4m3",
        follow_bootstrap_room=True,
        kv_layout=stock.pd_kv_layout(),
    )
    with pytest.raises(RuntimeError, match="KV layout mismatch: .*v4.*nvfp4,c4:nvfp4"):
        decode_manager(receiver).try_ensure_parallel_info(address)
    # And the other way round.
    answer["kv_layout"] = receiver.pd_kv_layout()
    with pytest.raises(RuntimeError, match="KV layout mismatch: .*nvfp4.*v4"):
        decode_manager(stock).try_ensure_parallel_info(address)


@pytest.mark.parametrize("kv_format", ["fp8", "nvfp4"])
def test_sglangs_checksum_does_not_fit_these_pools(device, kv_format):
    """It is given window pages to digest and no indices of them, on which its
    ``compute`` asserts: why the option is refused by name."""
    from sglang.srt.disaggregation.checksum import state_indices_for_request

    with fp8() if kv_format == "fp8" else nullcontext():
        pool = build_pool("cpu", num_pages=1)
    scheduler = SimpleNamespace(
        token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: pool)
    )
    pointers, _, _ = pool.get_state_buf_infos()
    assert pointers
    assert state_indices_for_request(scheduler, req=None, seq_len=PAGE_SIZE) is None


def test_checksums_of_different_formats_are_not_compared(device, receiver):
    from sglang.srt.disaggregation.utils import kv_layout_signature

    def signature(kv_layout):
        return kv_layout_signature(
            SimpleNamespace(
                page_size=PAGE_SIZE,
                kv_cache_dtype_str="fp8_e4m3",
                kv_layout=kv_layout,
                swa_kv_cache_layout=None,
                state_types=[],
                kv_item_lens=receiver.get_contiguous_buf_infos()[2],
                state_item_lens=[],
            )
        )

    assert signature(receiver.pd_kv_layout()) != signature("v4,c4:v4,c128:v4")
