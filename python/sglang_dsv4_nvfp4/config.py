"""What the environment asks of this feature, parsed and validated once.

In-tree: ``sglang/kernels/ops/attention/dsv4_nvfp4/config.py``.
"""

from __future__ import annotations

import enum
import functools
from typing import TypeVar

from sglang_dsv4_nvfp4.environ import envs

_Choice = TypeVar("_Choice", bound=enum.StrEnum)

KV_CACHE_FORMAT_ENV = envs.SGLANG_SM120_KV_CACHE_FORMAT.name
FLASHMLA_BACKEND_ENV = envs.SGLANG_SM120_FLASHMLA_BACKEND.name
KERNEL_ENV = envs.SGLANG_SM120_NVFP4_KERNEL.name
PROFILE_ENV = envs.SGLANG_SM120_NVFP4_PROFILE.name
CHECK_INDICES_ENV = envs.SGLANG_SM120_NVFP4_CHECK_INDICES.name
STORE_MODE_ENV = envs.SGLANG_SM120_NVFP4_STORE.name
SCALE_RULE_ENV = envs.SGLANG_SM120_NVFP4_SCALE_RULE.name


class KVCacheFormat(enum.StrEnum):
    FP8 = "fp8"
    NVFP4 = "nvfp4"


class StoreMode(enum.StrEnum):
    FUSED = "fused"
    STAGED = "staged"


class ScaleRule(enum.StrEnum):
    AMAX6 = "amax6"
    FOUR_OVER_SIX = "4over6"


# With fewer heads a rank than this, FlashInfer's "sparse" prefill kernel was slower than
# reading FP8, on 4 x RTX PRO 6000.
FULL_HEADS = 64


class Kernel(enum.StrEnum):
    """What reads NVFP4 pages.

    SPARSE and CAKE are FlashInfer's two families of SM120 kernels; TRITON and TORCH say
    what they are written in. AUTO takes what is measured, or known, to be fastest.
    """

    AUTO = "auto"
    SPARSE = "sparse"
    CAKE = "cake"
    TRITON = "triton"
    TORCH = "torch"


class _Flag(enum.StrEnum):
    OFF = "0"
    ON = "1"


class _FlashMLABackend(enum.StrEnum):
    FLASHINFER = "flashinfer"
    TRITON = "triton"
    TORCH = "torch"


_KERNEL_OF_BACKEND = {
    _FlashMLABackend.FLASHINFER: Kernel.AUTO,
    _FlashMLABackend.TRITON: Kernel.TRITON,
    _FlashMLABackend.TORCH: Kernel.TORCH,
}


def kv_cache_format() -> KVCacheFormat:
    """The KV cache format that the environment asks for; ``fp8`` when unset.

    Raises:
        ValueError: ``SGLANG_SM120_KV_CACHE_FORMAT`` names no known format.
    """
    value = envs.SGLANG_SM120_KV_CACHE_FORMAT.get()
    return _parse(KV_CACHE_FORMAT_ENV, value, KVCacheFormat.FP8)


def kernel() -> Kernel:
    """What reads NVFP4 pages.

    ``SGLANG_SM120_NVFP4_KERNEL``; unset, SGLang's ``SGLANG_SM120_FLASHMLA_BACKEND``
    decides, whose ``flashinfer`` means ``auto``.

    Raises:
        ValueError: one of them has a value that is unknown.
    """
    value = envs.SGLANG_SM120_NVFP4_KERNEL.get()
    if value.strip():
        return _parse(KERNEL_ENV, value, Kernel.AUTO)
    backend = _parse(
        FLASHMLA_BACKEND_ENV,
        envs.SGLANG_SM120_FLASHMLA_BACKEND.get(),
        _FlashMLABackend.FLASHINFER,
    )
    return _KERNEL_OF_BACKEND[backend]


def profile_path() -> str | None:
    """Where the measured kernel profile is asked to be; None for the usual place."""
    return envs.SGLANG_SM120_NVFP4_PROFILE.get().strip() or None


def checks_indices() -> bool:
    """Whether each call's slots are checked against the pool. It synchronizes.

    Raises:
        ValueError: the variable is neither 0 nor 1.
    """
    value = envs.SGLANG_SM120_NVFP4_CHECK_INDICES.get()
    return _parse(CHECK_INDICES_ENV, value, _Flag.OFF) is _Flag.ON


def store_mode() -> StoreMode:
    """How rows get into the pages; ``fused`` when unset.

    Raises:
        ValueError: ``SGLANG_SM120_NVFP4_STORE`` names no known mode.
    """
    value = envs.SGLANG_SM120_NVFP4_STORE.get()
    return _parse(STORE_MODE_ENV, value, StoreMode.FUSED)


def scale_rule() -> ScaleRule:
    """How the scale of 16 values is chosen; ``amax6`` when unset.

    Raises:
        ValueError: ``SGLANG_SM120_NVFP4_SCALE_RULE`` names no known rule.
    """
    value = envs.SGLANG_SM120_NVFP4_SCALE_RULE.get()
    return _parse(SCALE_RULE_ENV, value, ScaleRule.AMAX6)


def check_variables() -> None:
    """Refuse a value of any variable above that is unknown, before it is needed.

    Raises:
        ValueError: naming the variable, its value and what is known.
    """
    for read in (kv_cache_format, kernel, checks_indices, store_mode, scale_rule):
        read()


@functools.cache
def _parse(variable: str, value: str, default: _Choice) -> _Choice:
    normalized = value.strip().lower()
    if not normalized:
        return default
    choices = [member.value for member in type(default)]
    if normalized not in choices:
        raise ValueError(f"{variable}={value!r}: expected {' or '.join(choices)}")
    return type(default)(normalized)
