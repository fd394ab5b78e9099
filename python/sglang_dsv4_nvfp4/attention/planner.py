"""Decisions, made once: no kernel changes in the middle of a run.

In-tree: ``sglang/kernels/ops/attention/dsv4_nvfp4/planner.py``.
"""

from __future__ import annotations

import logging

import torch

from sglang_dsv4_nvfp4.arena import is_capturing
from sglang_dsv4_nvfp4.attention import policy
from sglang_dsv4_nvfp4.attention.decision import Decision, shape_class
from sglang_dsv4_nvfp4.attention.inputs import AttentionShape
from sglang_dsv4_nvfp4.config import Kernel

logger = logging.getLogger(__name__)

_Key = tuple[AttentionShape, torch.device, Kernel]


class Planner:
    """``policy.decide``, memoized per shape class for the life of the process.

    The number of decisions is bounded by the classes: about a hundred batch sizes, times
    the widths of the extra cache, which SGLang pads to multiples of 64.

    Inside FlashInfer's ``autotune(True)`` its "sparse" planner is asked anew, since its
    answer may come from a measurement that has just been made; afterwards the last
    answer stands.
    """

    def __init__(self) -> None:
        self._decisions: dict[_Key, Decision] = {}

    def plan(
        self, shape: AttentionShape, device: torch.device, kernel: Kernel
    ) -> Decision:
        """The decision for ``shape``'s class.

        Raises:
            ValueError: no kernel that is allowed serves the shape.
            RuntimeError: the class is new under CUDA graph capture.
        """
        key = (shape_class(shape), device, kernel)
        decision = self._decisions.get(key)
        capturing = is_capturing(device)
        if decision is not None and (capturing or not _may_be_retuned(decision)):
            return decision
        if capturing:
            raise RuntimeError(
                f"NVFP4 attention for {shape} was not planned before CUDA graph "
                "capture; run the same batch once outside the capture"
            )
        decision = policy.decide(*key)
        logger.debug("NVFP4 attention for %s: %s", key[0], decision)
        self._decisions[key] = decision
        return decision

    def __len__(self) -> int:
        return len(self._decisions)


def _may_be_retuned(decision: Decision) -> bool:
    if decision.kernel is not Kernel.SPARSE:
        return False
    from flashinfer.autotuner import AutoTuner

    return AutoTuner.get().is_tuning_mode
