"""One rank of prefill context parallelism: SGLang's gather, our store, its backend.

    python cp_rank.py RANK WORLD_SIZE INIT_METHOD DEVICE BACKEND

Each rank holds every WORLD_SIZE-th token of the chunk. It gathers the others' BF16 rows,
stores all of them, and attends with its own queries. Prints, as JSON, how many tokens it
attended with, and whether pages and outputs are those of one rank that has it all.
"""

import json
import sys

from sglang_dsv4_nvfp4.cli.sandbox import hooked_sglang

# An odd number of tokens to share, past the window, after a prefix that is there already.
PREFIX_LENS, EXTEND_LENS = (40, 90), (33, 60)


def main(rank, world_size, init_method, device, backend):
    with hooked_sglang():
        # What the kit imports is hooked by now.
        print(json.dumps(serve(rank, world_size, init_method, device, backend)))


def serve(rank, world_size, init_method, device, backend):
    import pytest
    import torch

    from sglang_dsv4_nvfp4.config import KVCacheFormat

    if device == "cuda":
        device = f"cuda:{rank % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    from sglang.srt.distributed import parallel_state
    from support.attention_kit import format_scope

    with (
        torch.no_grad(),
        pytest.MonkeyPatch.context() as monkeypatch,
        format_scope(monkeypatch, KVCacheFormat.NVFP4),
    ):
        expected_pages, expected = Chunk(device).prefill_alone()
        # As on a platform of CPUs: SGLang's own gather is an operator of CUDA alone.
        monkeypatch.setattr(parallel_state, "_is_cpu", device == "cpu")
        with ranks(rank, world_size, init_method, device, backend):
            pages, output, num_local = Chunk(device).prefill_shared()
    return dict(
        num_local=num_local,
        num_tokens=len(expected),
        pages_are_equal=torch.equal(pages, expected_pages),
        outputs_are_equal=torch.equal(output, expected),
    )


def ranks(rank, world_size, init_method, device, backend):
    """SGLang's context-parallel group over these processes, prefill CP on."""
    import torch
    from sglang.srt.distributed import parallel_state
    from sglang.srt.runtime_context import get_parallel

    local_rank = torch.device(device).index or 0
    parallel_state.init_distributed_environment(
        world_size=world_size,
        rank=rank,
        local_rank=local_rank,
        distributed_init_method=init_method,
        backend=backend,
        timeout=60,
    )
    group = parallel_state.init_model_parallel_group(
        [list(range(world_size))],
        local_rank,
        backend,
        use_pynccl=False,
        use_custom_allreduce=False,
        group_name="attn_cp",
    )
    shared = torch.ones(1, device=device)
    assert group.all_reduce(shared).item() == world_size
    return get_parallel().override(
        tp_size=world_size,
        moe_tp_size=world_size,
        attn_cp_size=world_size,
        attn_cp_rank=rank,
        attn_cp_group=group,
        enable_prefill_cp=True,
        cp_strategy="interleave",
    )


class Chunk:
    """The same chunk of a prefill on every rank, and the pages of this one."""

    def __init__(self, device):
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from support.attention_kit import KitTestCase, kit, make_case

        case = make_case(ForwardMode.EXTEND, PREFIX_LENS, EXTEND_LENS)
        self.fixture = kit.build_dsv4_attention_fixture(
            KitTestCase(), case, device=device
        )
        self.pool = self.fixture.runner.token_to_kv_pool
        self.batch = self.fixture.forward_batch
        self.queries, self.rows = self.fixture.actual_module.project(
            self.fixture.input_hidden
        )
        self.rows = self.rows.reshape(len(self.queries), -1)
        self._store_prefixes()

    def _store_prefixes(self):
        max_context_len = self.fixture.runner.req_to_token_pool.req_to_token.shape[1]
        for index, hidden in enumerate(self.fixture.prefix_hidden):
            _, rows = self.fixture.actual_module.project(hidden)
            slots = self.fixture.runner.req_to_token_pool.req_to_token[
                index, : len(hidden)
            ]
            assert len(hidden) < max_context_len
            self.pool.set_swa_key_buffer_radix_fused(
                0, slots, rows.reshape(len(hidden), -1)
            )

    def prefill_alone(self):
        output = self._prefill(self.rows, self.queries)
        return self._pages(), output

    def prefill_shared(self):
        import torch
        from sglang.srt.layers.cp import utils as cp

        cp.prepare_cp_forward(self.batch)
        own_rows, own_queries = (
            cp.cp_shard_hidden_states(whole, self.batch)
            for whole in (self.rows, self.queries)
        )
        # As the model does: what this rank has not, it gathers before it stores.
        rows = cp.cp_materialize_global_token_order(own_rows.contiguous(), self.batch)
        output = self._prefill(rows, own_queries)
        whole = cp.cp_gather_after_forward(output, self.batch)
        assert not torch.equal(own_rows, self.rows[: len(own_rows)])
        return self._pages(), whole, len(own_queries)

    def _prefill(self, rows, queries):
        from sglang.srt.model_executor.forward_context import (
            ForwardContext,
            forward_context,
        )

        backend, module = self.fixture.backend, self.fixture.actual_module
        with forward_context(ForwardContext(attn_backend=backend)):
            backend.init_forward_metadata(self.batch)
            backend.store_cache(layer_id=0, swa_k=rows, forward_batch=self.batch)
            return backend.forward(
                q=queries,
                k=queries,
                v=queries,
                layer=module.attn,
                forward_batch=self.batch,
                compress_ratio=0,
                save_kv_cache=False,
                attn_sink=module.attn_sink,
            )

    def _pages(self):
        return self.pool.swa_kv_pool.kv_buffer[0].clone()


if __name__ == "__main__":
    rank, world_size, init_method, device, backend = sys.argv[1:]
    main(int(rank), int(world_size), init_method, device, backend)
