"""SGLang's own attention kit: the real backend over NVFP4 pools, and over FP8 ones.

The FP8 arm is there so that a kit that fails by itself is not read as ours failing.
Without a GPU the kernels run in Triton's interpreter, and only what reads the window is
tested: SGLang plans compressed layers by CUDA kernels, and the interpreter cuts where
SGLang's packer of FP8 rows rounds.
"""

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.test.kits.attention_unittest.runner_modes.cuda_graph_decode_runner import (
    run_dsv4_cuda_graph_decode_case,
)
from sglang.test.kits.attention_unittest.runner_modes.speculative_target_verify_runner import (
    run_dsv4_eagle_verify_cuda_graph_case,
)
from support.attention_kit import KitTestCase, format_scope, kit, make_case

from sglang_dsv4_nvfp4.config import KERNEL_ENV, Kernel, KVCacheFormat

WINDOW_CASES = kit.make_dsv4_cases("dsv4")
needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"
)
COMPRESSED_RATIOS = [pytest.param(ratio, marks=needs_cuda) for ratio in (4, 128)]
RATIOS = [0, *COMPRESSED_RATIOS]
ARMS = [pytest.param("fp8", marks=needs_cuda), "nvfp4-torch", "nvfp4-triton"]


@pytest.fixture(params=ARMS, autouse=True)
def arm(request, device, monkeypatch):
    """A format, and for NVFP4 the kernel that reads it."""
    kv_format, _, kernel = request.param.partition("-")
    if kernel:
        monkeypatch.setenv(KERNEL_ENV, Kernel(kernel))
    with format_scope(monkeypatch, KVCacheFormat(kv_format)):
        yield


@pytest.mark.parametrize("case", WINDOW_CASES, ids=lambda case: case.name)
def test_sliding_window(case, device):
    kit.run_dsv4_attention_case(KitTestCase(), case, device=device)


@pytest.mark.parametrize("ratio", COMPRESSED_RATIOS)
def test_extend_reads_window_and_compressed_entries(ratio, device):
    case = make_case(ForwardMode.EXTEND, (48,), (16,), ratio)
    kit.run_dsv4_compress_attention_case(KitTestCase(), case, device=device)


@pytest.mark.parametrize("ratio", COMPRESSED_RATIOS)
def test_decode_reads_window_and_compressed_entries(ratio, device):
    """Two requests, one of them past the window."""
    case = make_case(ForwardMode.DECODE, (200, 30), (), ratio)
    kit.run_dsv4_compress_attention_case(KitTestCase(), case, device=device)


@pytest.mark.parametrize("num_heads", [8, 16, 32])
@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.DECODE])
def test_heads_of_an_attention_tp_rank(mode, num_heads, device):
    extend_lens = (16,) if mode.is_extend() else ()
    case = make_case(mode, (48,), extend_lens, num_heads=num_heads)
    kit.run_dsv4_attention_case(KitTestCase(), case, device=device)


def test_an_idle_rank_of_attention_dp_writes_the_dummy_page_alone(device):
    """SGLang pads its batch to the other ranks' and plans it like a decode; where it
    pads nothing, no token gets as far as the backend."""
    case = make_case(ForwardMode.DECODE, (40, 100))
    fixture = kit.build_dsv4_attention_fixture(KitTestCase(), case, device=device)
    backend, batch = fixture.backend, fixture.forward_batch
    pool = fixture.runner.token_to_kv_pool
    dummy_page = pool.get_swa_key_page_size()
    # The kit starts at slot 1; SGLang's allocator keeps the whole first page free.
    pool.get_swa_raw_buffer(0).fill_(7)
    before = pool.get_swa_raw_buffer(0).clone()
    batch.forward_mode = ForwardMode.IDLE
    batch.out_cache_loc.zero_()
    batch.seq_lens.fill_(1)
    batch.seq_lens_cpu.fill_(1)
    batch.req_pool_indices.zero_()
    queries, rows = fixture.actual_module.project(fixture.input_hidden)
    rows = rows.reshape(len(queries), -1)
    with torch.no_grad(), kit.forward_context(kit.ForwardContext(attn_backend=backend)):
        backend.init_forward_metadata(batch)
        output = backend.forward(
            q=queries,
            k=rows,
            v=rows,
            layer=fixture.actual_module.attn,
            forward_batch=batch,
            compress_ratio=0,
            attn_sink=fixture.actual_module.attn_sink,
        )
    assert output.shape == (2, case.num_heads, 512)
    after = pool.get_swa_raw_buffer(0)
    assert len(before) > 1 and dummy_page == 256
    assert torch.equal(after[1:], before[1:])
    assert not torch.equal(after[0], before[0])


@pytest.mark.parametrize("ratio", RATIOS)
def test_target_verify(ratio, device):
    case = make_case(ForwardMode.TARGET_VERIFY, (40, 100), (3, 3), ratio)
    kit.run_dsv4_target_verify_attention_case(KitTestCase(), case, device=device)


def test_draft_extend(device):
    case = make_case(ForwardMode.DRAFT_EXTEND_V2, (40, 100), (3, 3))
    kit.run_dsv4_draft_extend_attention_case(KitTestCase(), case, device=device)


@pytest.mark.parametrize("ratio", RATIOS)
def test_decode_with_graph_metadata_and_padding(ratio, device):
    """Metadata as a CUDA graph's buffers hold it, four requests wide for two."""
    case = make_case(ForwardMode.DECODE, (40, 100), (), ratio)
    run_dsv4_cuda_graph_decode_case(
        KitTestCase(), case, device=device, cuda_graph_capture_batch_size=4
    )


@pytest.mark.parametrize("ratio", RATIOS)
def test_target_verify_with_graph_metadata_and_padding(ratio, device):
    case = make_case(ForwardMode.TARGET_VERIFY, (40, 100), (3, 3), ratio)
    run_dsv4_eagle_verify_cuda_graph_case(
        KitTestCase(), case, device=device, cuda_graph_capture_batch_size=4
    )


@needs_cuda
def test_multi_step_draft(device):
    """SGLang's draft runner: three steps captured in a CUDA graph, stores included."""
    from sglang.test.kits.attention_unittest.runner_modes import (
        speculative_draft_runner,
    )

    speculative_draft_runner.run_dsv4_eagle_draft_cuda_graph_runner_case(
        KitTestCase(), make_case(ForwardMode.DECODE, (40, 100)), device=device
    )
