"""What serves one class of shapes: kernel, phase and launch parameters.

In-tree: ``sglang/kernels/ops/attention/dsv4_nvfp4/decision.py``.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from sglang_dsv4_nvfp4.arena import bucket_size
from sglang_dsv4_nvfp4.attention.inputs import AttentionShape
from sglang_dsv4_nvfp4.config import Kernel

# FlashInfer's "sparse" split-K decode takes batches up to this (flashinfer_python 0.7.2,
# `_policy.py`); a regression was seen exactly there.
DECODE_MAX_TOKENS = 64
# Above it, batches up to the next of these sizes are one class: four an octave.
_CLASSES_PER_OCTAVE = 4


class Phase(enum.StrEnum):
    """DECODE splits the candidates and merges; PREFILL takes them in one pass."""

    DECODE = "decode"
    PREFILL = "prefill"


class Decision(NamedTuple):
    """kernel: never AUTO.

    chunks: for SPARSE the chunks of 64 candidates that a decode block takes, 0 for the
        launcher's choice; for CAKE and TRITON the parts that candidates are split into.
    head_tiles: for CAKE, tiles of heads that a block takes.
    """

    kernel: Kernel
    phase: Phase
    chunks: int = 1
    head_tiles: int = 1

    def __str__(self) -> str:
        text = f"{self.kernel}/{self.phase}, chunks {self.chunks}"
        if self.kernel is Kernel.CAKE:
            text += f", head tiles {self.head_tiles}"
        return text


def shape_class(shape: AttentionShape) -> AttentionShape:
    """The shape that decides for ``shape``: its largest batch, all else as it is.

    Batches of up to 64 tokens, which CUDA graphs capture one by one, are classes of
    their own.
    """
    num_tokens = shape.num_tokens
    if num_tokens > DECODE_MAX_TOKENS:
        num_tokens = bucket_size(num_tokens, _CLASSES_PER_OCTAVE)
    return shape._replace(num_tokens=num_tokens)
