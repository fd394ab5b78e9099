"""Prefill context parallelism in two processes, through SGLang's gather and backend."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from support import cp_rank
from support.processes import run_python

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
    environment = dict(
        PYTHONPATH=str(Path(cp_rank.__file__).parent.parent),
        SGLANG_SM120_NVFP4_KERNEL=kernel,
        **(
            {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"}
            if device == "cpu"
            else {}
        ),
    )

    def serve(rank):
        return run_python(
            cp_rank.__file__,
            str(rank),
            str(RANKS),
            f"file://{tmp_path}/rendezvous",
            device,
            backend,
            **environment,
        )

    with ThreadPoolExecutor(RANKS) as ranks:
        results = list(ranks.map(serve, range(RANKS)))
    num_tokens = sum(cp_rank.EXTEND_LENS)
    for result in results:
        assert result.returncode == 0, result.stderr[-3000:]
        said = json.loads(result.stdout.splitlines()[-1])
        assert said["num_tokens"] == num_tokens
        assert num_tokens // RANKS <= said["num_local"] < num_tokens
        assert said["pages_are_equal"] and said["outputs_are_equal"]
