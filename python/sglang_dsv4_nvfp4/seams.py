"""Every place where SGLang and this package meet: one table.

SGLang's official plugin system does the patching (``HookRegistry``); this module
says what is patched, checks before anything is hooked that each target is still the
one we were written against, and can tell afterwards whether our hooks are in force.

The signatures are those of ``SGLANG_VERSION``. In-tree each seam becomes an ``if`` or a
call at its target.
"""

from __future__ import annotations

import enum
import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sglang_dsv4_nvfp4 import signatures
from sglang_dsv4_nvfp4.platform import distribution_version

SGLANG_VERSION = "0.5.23"


class Kind(enum.Enum):
    """How we meet a target; all but the first are values of SGLang's ``HookType``.

    SUBCLASS: not patched; one of our classes derives from it.
    """

    SUBCLASS = "subclass"
    REPLACE = "replace"
    AROUND = "around"
    AFTER = "after"


@dataclass(frozen=True)
class Seam:
    """One target in SGLang.

    signature: what the target takes (of a class, its constructor).
    hook: ``module:name`` in this package, imported only when NVFP4 is on.
    purpose: what ours does, for ``doctor``.
    methods: for a class, the methods our subclass relies on and their signatures.
    writers: for a class, its method names that write a cache; one that we do not
        know would write FP8 rows into NVFP4 pages.
    """

    target: str
    kind: Kind
    signature: str
    hook: str
    purpose: str
    methods: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    writers: frozenset[str] = frozenset()


TOKEN_TO_KV_POOL = (
    "sglang.srt.mem_cache.deepseek_v4_memory_pool.DeepSeekV4TokenToKVPool"
)
ATTENTION = "sglang.kernels.ops.attention.flash_mla_sm120.flash_mla_with_kvcache_sm120"

SEAMS: tuple[Seam, ...] = (
    Seam(
        target="sglang.srt.mem_cache.deepseek_v4_memory_pool.DeepSeekV4SingleKVPool",
        kind=Kind.SUBCLASS,
        signature=(
            "(size, page_size, dtype, qk_nope_head_dim, qk_rope_head_dim, layer_num, "
            "device, enable_memory_saver, start_layer=, end_layer=, kv_layout=, "
            "global_page_size=)"
        ),
        hook="mem_cache.single_kv_pool:DeepSeekV4NVFP4SingleKVPool",
        purpose="one cache's NVFP4 pages",
        methods=MappingProxyType(
            {
                "create_buffer": "(self, *, num_pages)",
                "get_bytes_per_token": "(self)",
                "get_key_buffer": "(self, layer_id)",
                "set_key_buffer": (
                    "(self, layer_id, loc, cache_nope_fp8_rope_bf16_pack)"
                ),
                "set_key_buffer_fused": "(self, layer_id, loc, cache_k, freqs_cis=)",
            }
        ),
        writers=frozenset({"set_key_buffer", "set_key_buffer_fused", "set_kv_buffer"}),
    ),
    Seam(
        target=TOKEN_TO_KV_POOL,
        kind=Kind.REPLACE,
        signature=(
            "(max_num_reqs, swa_size, c4_size, c128_size, c4_state_pool_size, "
            "c128_state_pool_size, page_size, swa_page_size, dtype, c4_state_dtype, "
            "c128_state_dtype, qk_nope_head_dim, qk_rope_head_dim, indexer_head_dim, "
            "layer_num, device, enable_memory_saver, compression_ratios, "
            "sliding_window=, start_layer=, end_layer=, enable_hisparse=, "
            "online_mtp_max_draft_tokens=, num_req_slots=, unified_fp8=, "
            "kv_source_layers=, full_size=, is_draft_worker=, kv_layout=, "
            "compressed_kv_layout=)"
        ),
        hook="mem_cache.token_to_kv_pool:DeepSeekV4NVFP4TokenToKVPool",
        purpose="NVFP4 pages, their setters and getters",
        methods=MappingProxyType(
            {
                "_make_kv_pool": (
                    "(self, *, size, page_size, dtype, layer_num, device, "
                    "enable_memory_saver, global_page_size, cls=, kv_layout=)"
                ),
                "_swa_local_layer_id": "(self, layer_id)",
                "compressed_kv_layout": "(self, compress_ratio)",
                "get_swa_key_bytes_per_token": "(self)",
                "get_swa_key_layout": "(self)",
                "pd_kv_layout": "(self)",
                "set_extra_key_buffer": (
                    "(self, layer_id, loc, cache_nope_fp8_rope_bf16_pack)"
                ),
                "set_extra_key_buffer_fused": (
                    "(self, layer_id, loc, cache_k, freqs_cis=)"
                ),
                "set_swa_key_buffer": (
                    "(self, layer_id, loc, cache_nope_fp8_rope_bf16_pack)"
                ),
                "set_swa_key_buffer_radix": (
                    "(self, layer_id, swa_loc, cache_nope_fp8_rope_bf16_pack)"
                ),
                "set_swa_key_buffer_radix_fused": "(self, layer_id, swa_loc, cache_k)",
                "set_swa_key_buffer_radix_fused_norm_rope": (
                    "(self, layer_id, swa_loc, kv, kv_weight, eps, freqs_cis, "
                    "positions, q=)"
                ),
                "set_unified_key_buffer_radix_fused_norm_rope": (
                    "(self, layer_id, swa_loc, kv, kv_weight, eps, freqs_cis, "
                    "positions)"
                ),
            }
        ),
        writers=frozenset(
            {
                "set_extra_key_buffer",
                "set_extra_key_buffer_fused",
                "set_swa_key_buffer",
                "set_swa_key_buffer_radix",
                "set_swa_key_buffer_radix_fused",
                "set_swa_key_buffer_radix_fused_norm_rope",
                "set_unified_key_buffer_radix_fused_norm_rope",
                # Not the latents': refused by the base, the indexer's, PD's mark.
                "set_kv_buffer",
                "set_index_k_fp4",
                "set_index_k_fused",
                "set_index_k_scale_buffer",
                "set_swa_valid_from",
            }
        ),
    ),
    Seam(
        target=(
            "sglang.srt.model_executor.pool_configurator.DSV4PoolConfigurator."
            "_get_paged_kv_bytes_per_token"
        ),
        kind=Kind.AROUND,
        signature="(self, compress_ratio=)",
        hook="seams:count_paged_kv_bytes",
        purpose="384 bytes a latent slot, no page padding",
    ),
    Seam(
        target=ATTENTION,
        kind=Kind.AROUND,
        signature="(**kwargs)",
        hook="seams:attend",
        purpose="attention over NVFP4 pages",
    ),
    Seam(
        target="sglang.kernels.ops.attention.dsv4.compress.compress_norm_rope_store",
        kind=Kind.AROUND,
        signature=(
            "(kv, plan, *, norm_weight, norm_eps, freq_cis, out_loc, kvcache, "
            "page_size, use_fp4=, bf16_store=, kvcache_scale=, rope_cache=, "
            "fp4_k_write_metadata=, layout=, fp8_2buff=, kvcache_rope=)"
        ),
        hook="seams:store_compressed",
        purpose="the c4 and c128 stores; the indexer's passes through",
    ),
    Seam(
        target=(
            "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller."
            "HybridCacheController.attach_storage_backend"
        ),
        kind=Kind.AROUND,
        signature=(
            "(self, storage_backend, prefetch_threshold=, model_name=, "
            "storage_backend_extra_config=, host_pools=)"
        ),
        hook="seams:attach_storage",
        purpose="names the format in the keys of HiCache's storage",
    ),
    Seam(
        target="sglang.srt.arg_groups.deepseek_v4_hook.apply_deepseek_v4_defaults",
        kind=Kind.AFTER,
        signature="(server_args, model_arch)",
        hook="seams:check_server_args",
        purpose="refuse options that NVFP4 cannot serve",
    ),
)

_HOOKED = tuple(seam for seam in SEAMS if seam.kind is not Kind.SUBCLASS)

# What each target was before it was hooked, by target.
_stock: dict[str, Any] = {}


def count_paged_kv_bytes(original: Callable, configurator: Any, *args, **kwargs):
    from sglang_dsv4_nvfp4.mem_cache.budget import paged_kv_bytes_per_token
    from sglang_dsv4_nvfp4.platform import is_nvfp4_kv_cache

    if not is_nvfp4_kv_cache():
        return original(configurator, *args, **kwargs)
    return paged_kv_bytes_per_token()


def attend(original: Callable, **kwargs):
    from sglang_dsv4_nvfp4.attention.dispatch import flash_mla_with_nvfp4_kvcache
    from sglang_dsv4_nvfp4.layout import BYTES_PER_TOKEN

    # SGLang's kernels tell a cache's format by this dimension too.
    if kwargs["k_cache"].shape[-1] != BYTES_PER_TOKEN:
        return original(**kwargs)
    return flash_mla_with_nvfp4_kvcache(**kwargs)


def store_compressed(original: Callable, kv, plan, **kwargs):
    from sglang_dsv4_nvfp4.layout import NVFP4_KV_LAYOUT, kernel_view
    from sglang_dsv4_nvfp4.store.dispatch import store_compressed_rows

    # The layout is the pool's: the indexer's store keeps SGLang's own.
    if kwargs.get("layout") is not NVFP4_KV_LAYOUT:
        return original(kv, plan, **kwargs)
    wanted = ("norm_weight", "norm_eps", "freq_cis", "out_loc")
    store_compressed_rows(
        kv,
        plan,
        **{name: kwargs[name] for name in wanted},
        cache=kernel_view(kwargs["kvcache"], kwargs["page_size"]),
    )


def attach_storage(
    original: Callable, controller: Any, storage_backend, *args, **kwargs
):
    from sglang_dsv4_nvfp4.mem_cache.storage import tag_storage_keys

    tag_storage_keys(
        controller.mem_pool_device, controller.storage_host_pool, storage_backend
    )
    return original(controller, storage_backend, *args, **kwargs)


def check_server_args(result: None, server_args, *args, **kwargs) -> None:
    from sglang_dsv4_nvfp4 import unsupported

    require_installed()
    try:
        unsupported.check_server_args(server_args)
    except ValueError as error:
        # One line, like every other refusal at startup.
        raise SystemExit(f"sglang-dsv4-nvfp4: {error}") from None


def version_problem() -> str | None:
    """Why the installed SGLang is not the one the seams were written against.

    Signatures do not show everything that is relied on: the bytes of a plan row,
    what a kernel stores where, who reads a buffer.
    """
    installed = distribution_version("sglang")
    # A local part names a build of the same source.
    if installed is None or installed.split("+")[0] != SGLANG_VERSION:
        return f"sglang {installed} is installed, {SGLANG_VERSION} is needed"
    return None


def problems() -> dict[str, str | None]:
    """For each target, what does not fit; None where it does."""
    return {seam.target: _problem(seam) for seam in SEAMS}


def register() -> None:
    """Register every hook with SGLang, which applies them after the plugins ran.

    Raises:
        RuntimeError: a seam does not fit the installed SGLang; nothing is hooked.
    """
    unfit = [
        problem for problem in (version_problem(), *problems().values()) if problem
    ]
    if unfit:
        raise RuntimeError(
            f"SGLang does not fit: {'; '.join(unfit)}. "
            f"pip install sglang=={SGLANG_VERSION}, or unset the variable to serve in "
            "FP8"
        )
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for seam in _HOOKED:
        _stock[seam.target] = signatures.resolve(seam.target)
        HookRegistry.register(seam.target, _hook(seam), HookType(seam.kind.value))


def is_registered() -> bool:
    """Whether :func:`register` has run in this process."""
    return bool(_stock)


def stock(target: str) -> Any:
    """SGLang's own object at ``target``, whether it is hooked or not."""
    return _stock.get(target) or signatures.resolve(target)


def require_installed() -> None:
    """Refuse to go on where one of our hooks is not in force.

    ``HookRegistry.apply_hooks`` logs a failure and carries on, and another plugin may
    replace what we replaced; a server with some of its seams would read one format
    and write another.

    Raises:
        RuntimeError: naming the seams that are missing.
    """
    missing = [seam.target for seam in _HOOKED if not _is_in_force(seam)]
    if missing:
        raise RuntimeError(
            f"this package is not in force at {', '.join(missing)}: load it with "
            "sglang.srt.plugins.load_plugins() before any of SGLang's workers start, "
            "and with no other plugin that replaces the same"
        )


def _is_in_force(seam: Seam) -> bool:
    if seam.target not in _stock:
        return False
    hook, current = _hook(seam), signatures.resolve(seam.target)
    if isinstance(hook, type):
        return issubclass(current, hook)
    # SGLang wraps a function in closures over each hook, innermost first.
    while current is not None:
        if any(
            cell.cell_contents is hook
            for cell in getattr(current, "__closure__", None) or ()
        ):
            return True
        current = getattr(current, "__wrapped__", None)
    return False


def _hook(seam: Seam) -> Any:
    module, name = seam.hook.split(":")
    return getattr(importlib.import_module(f"{__package__}.{module}"), name)


def _problem(seam: Seam) -> str | None:
    mismatch = signatures.mismatch(seam.target, seam.signature, stock)
    if mismatch:
        return mismatch
    owner = stock(seam.target)
    for name, expected in seam.methods.items():
        mismatch = signatures.mismatch(
            name, expected, functools.partial(getattr, owner)
        )
        if mismatch:
            return f"{seam.target}: {mismatch}"
    if seam.writers:
        present = {name for name in dir(owner) if name.startswith("set_")}
        unknown = sorted(present - seam.writers)
        if unknown:
            return f"{seam.target} has unknown writers: {', '.join(unknown)}"
    return None
