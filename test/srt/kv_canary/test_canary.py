"""SGLang's KV canary over NVFP4 windows: it sees every byte of a row, and no other's."""

import pytest
import torch
from support.pools import PAGE_SIZE, build_pool, fp8, random_rows

from sglang_dsv4_nvfp4.layout import DATA_BYTES, NOPE_BYTES, slot_offsets

NUM_PAGES = 3
# The first usable slot, a kernel page's edges, and the last slot of the last page.
SLOTS = (256, 319, 320, 700, (NUM_PAGES + 1) * PAGE_SIZE - 1)


@pytest.fixture
def pool(device, generator):
    made = build_pool(device, num_pages=NUM_PAGES)
    made.register_mapping(torch.arange((NUM_PAGES + 1) * PAGE_SIZE + 1, device=device))
    slots = torch.tensor(SLOTS, device=device, dtype=torch.int32)
    made.set_swa_key_buffer_radix_fused(
        0, slots, random_rows(generator, len(SLOTS), device)
    )
    return made


def attach(pool, real_data):
    from sglang.kernels.ops.kv_canary.consts import RealKvHashMode
    from sglang.srt.kv_canary.config import CanaryConfig, CanaryMode
    from sglang.srt.kv_canary.pool_patcher.api import attach_canary_buffers

    (group,) = attach_canary_buffers(
        pool=pool,
        config=CanaryConfig(
            mode=CanaryMode.RAISE,
            ring_capacity=64,
            sweep_interval=0,
            real_kv_hash_mode=RealKvHashMode[real_data],
            enable_write_input_assert=False,
            enable_verify_token_assert=False,
            stats_print_every_n_steps=0,
        ),
        device=torch.device(pool.device),
        kv_token_id_vs_position_offset=0,
    )
    return group


class Canary:
    """One request whose tokens lie in SLOTS, in that order."""

    def __init__(self, pool, real_data):
        from sglang.kernels.ops.kv_canary.consts import VIOLATION_FIELDS, RealKvHashMode
        from sglang.kernels.ops.kv_canary.verify import (
            CanaryLaunchTag,
            VerifyOrWriteContext,
        )

        device = pool.device
        group = attach(pool, real_data)

        def zeros(*shape, dtype):
            return torch.zeros(shape, dtype=dtype, device=device)

        self.context = VerifyOrWriteContext(
            canary_buf=group.k_tail,
            kernel_kind=CanaryLaunchTag.TAIL_K_SWA,
            violation_ring=zeros(64, VIOLATION_FIELDS, dtype=torch.int64),
            violation_write_index=zeros(1, dtype=torch.int32),
            slot_run_counter=zeros(1, dtype=torch.int64),
            kernel_run_counter=zeros(1, dtype=torch.int64),
            real_kv_sources=group.real_kv_sources_k,
            real_kv_hash_mode=RealKvHashMode[real_data],
            enable_chain_position_assert=zeros(1, dtype=torch.int32),
        )
        self.slots = torch.tensor(SLOTS, device=device)
        self.positions = torch.arange(len(SLOTS), device=device)

    def write(self):
        from sglang.kernels.ops.kv_canary.write import (
            WritePlan,
            launch_canary_write_kernel,
        )

        plan = WritePlan.allocate(write_req_capacity=1, device=self.slots.device)
        plan.write_offsets.copy_(torch.tensor([0, len(SLOTS)]))
        plan.write_seed_slot_indices.fill_(-1)
        plan.write_num_valid_reqs.fill_(1)
        launch_canary_write_kernel(
            context=self.context,
            plan=plan,
            input_ids=self.positions + 1000,
            positions=self.positions,
            out_cache_loc=self.slots,
            enable_write_input_assert=False,
            expected_input_tokens=None,
            expected_input_positions=None,
        )

    def violations(self):
        """Slots that the next read would find changed, and why."""
        from sglang.kernels.ops.kv_canary import consts
        from sglang.kernels.ops.kv_canary.verify import (
            VerifyPlan,
            launch_canary_verify_kernel,
        )

        plan = VerifyPlan.allocate(verify_capacity=len(SLOTS), device=self.slots.device)
        plan.verify_slot_indices.copy_(self.slots)
        plan.verify_expected_tokens.copy_(self.positions + 1000)
        plan.verify_expected_positions.copy_(self.positions)
        plan.verify_prev_slot_indices.copy_(
            torch.cat([self.slots.new_tensor([-1]), self.slots[:-1]])
        )
        plan.verify_num_valid.fill_(len(SLOTS))
        self.context.violation_write_index.zero_()
        launch_canary_verify_kernel(
            context=self.context, plan=plan, check_verify_expected_token=True
        )
        rows = self.context.violation_ring[: self.context.violation_write_index]
        return {
            (
                row[consts.VIOLATION_FIELD_SLOT_IDX],
                consts.FailReason(row[consts.VIOLATION_FIELD_FAIL_REASON_BITS]),
            )
            for row in rows.tolist()
        }


def flip(pool, slot, offset):
    """One byte of a slot's 384: data row first, then scale row."""
    cache = pool.swa_kv_pool.kernel_view(0)
    page, data, scales = (
        int(value) for value in slot_offsets(torch.tensor(slot), cache.shape[1])
    )
    at = data + offset if offset < DATA_BYTES else scales + offset - DATA_BYTES
    cache[page].view(-1)[at] ^= 0xFF


@pytest.mark.parametrize("slot", SLOTS)
@pytest.mark.parametrize(
    "offset",
    [0, NOPE_BYTES - 1, NOPE_BYTES, DATA_BYTES - 1, DATA_BYTES, 383],
    ids=["first code", "last code", "first RoPE", "last RoPE", "scale", "padding"],
)
def test_any_changed_byte_is_seen(pool, slot, offset):
    from sglang.kernels.ops.kv_canary.consts import FailReason

    canary = Canary(pool, "ALL")
    canary.write()
    assert canary.violations() == set()
    flip(pool, slot, offset)
    assert canary.violations() == {(slot, FailReason.VERIFY_REAL_KV_HASH_MISMATCH)}


def test_the_cheap_mode_reads_the_start_of_each_part(pool):
    canary = Canary(pool, "PARTIAL")
    canary.write()
    flip(pool, SLOTS[0], 16)
    flip(pool, SLOTS[0], DATA_BYTES + 16)
    assert canary.violations() == set()
    flip(pool, SLOTS[0], DATA_BYTES + 15)
    assert {slot for slot, _ in canary.violations()} == {SLOTS[0]}


def test_neighbours_are_not_its_business(pool):
    canary = Canary(pool, "ALL")
    canary.write()
    for slot in (257, 318, 321, 699):
        flip(pool, slot, 0)
        flip(pool, slot, DATA_BYTES)
    assert canary.violations() == set()


def test_without_real_data_only_tokens_are_kept(pool):
    assert attach(pool, "NONE").real_kv_sources_k == ()


def test_pd_moves_the_fingerprints_with_the_pages(pool):
    before = list(zip(*pool.get_state_buf_infos(), strict=True))
    group = attach(pool, "ALL")
    head, *between, tail = zip(*pool.get_state_buf_infos(), strict=True)
    assert between == before
    for entry, buffer in ((head, group.k_head), (tail, group.k_tail)):
        pointer, length, item = entry
        assert (pointer, length) == (buffer.data_ptr(), buffer.nbytes)
        # One item per page of the window, its dummy page included.
        assert length // item == pool.swa_kv_pool.kv_buffer[0].shape[0]


def test_fp8_pools_keep_sglangs_adapter(device):
    from sglang.srt.kv_canary.pool_patcher import api
    from sglang.srt.kv_canary.pool_patcher.adapters.dsv4 import attach_dsv4

    with fp8():
        assert api._POOL_ATTACHERS[type(build_pool(device))] is attach_dsv4
