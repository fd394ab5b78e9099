"""Prefill context parallelism in two processes, through SGLang's gather and backend."""

from concurrent.futures import ThreadPoolExecutor, as_completed

import pytest
import torch
from support import cp_rank
from support.processes import ask_support

RANKS = 2
needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"
)
needs_two_gpus = pytest.mark.skipif(
    torch.cuda.device_count() < RANKS,
    reason=f"needs {RANKS} CUDA devices, {torch.cuda.device_count()} found",
)


@pytest.mark.parametrize(
    ("device", "backend", "kernel"),
    [
        ("cpu", "gloo", "torch"),
        # Two ranks on one device, which NCCL does not take.
        pytest.param("cuda", "gloo", "triton", marks=needs_cuda),
        pytest.param("cuda", "nccl", "triton", marks=needs_two_gpus),
    ],
)
def test_ranks_store_and_attend_as_one_does(tmp_path, device, backend, kernel):
    environment = dict(SGLANG_SM120_NVFP4_KERNEL=kernel)
    if device == "cpu":
        environment |= dict(CUDA_VISIBLE_DEVICES="", TRITON_INTERPRET="1")

    def serve(rank):
        return ask_support(
            "cp_rank.py",
            str(rank),
            str(RANKS),
            f"file://{tmp_path}/rendezvous",
            device,
            backend,
            **environment,
        )

    num_tokens = sum(cp_rank.EXTEND_LENS)
    with ThreadPoolExecutor(RANKS) as ranks:
        # The first to end: where one fails, the other only waits for it.
        for ended in as_completed(ranks.submit(serve, rank) for rank in range(RANKS)):
            said = ended.result()
            assert said["num_tokens"] == num_tokens
            assert num_tokens // RANKS <= said["num_local"] < num_tokens
            assert said["pages_are_equal"] and said["outputs_are_equal"]
