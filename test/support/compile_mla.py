"""Compile the attention kernels without a device, and say what came out.

Run as a program without TRITON_INTERPRET: interpreted functions cannot be compiled.
Prints a JSON list of {kernel, arch, heads, tensor_core, shared, registers, spilled}.
"""

import json
import sys

import triton
from support.kernel_resources import resources
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from sglang_dsv4_nvfp4.attention.triton_backend import portable_launch
from sglang_dsv4_nvfp4.kernels import nvfp4_mla, nvfp4_mla_sm90

_TYPES = {
    "q_ptr": "*bf16",
    "cache_ptr": "*u8",
    "extra_cache_ptr": "*u8",
    "sink_ptr": "*fp32",
    "output_ptr": "*bf16",
    "lse_ptr": "*fp32",
    "softmax_scale": "fp32",
    "partial_ptr": "*bf16",
    "partial_lse_ptr": "*fp32",
}
_SHAPE = {
    "PAGE_SIZE": 64,
    "EXTRA_PAGE_SIZE": 2,
    "HAS_LENGTHS": True,
    "HAS_EXTRA_LENGTHS": True,
    "HAS_SINK": True,
}
_PORTABLE_ARCHS = (80, 90, 100, 120, 121)
_INSTRUCTIONS = ("mma.sync", "wgmma.mma_async", "tcgen05.mma")


def compile_kernel(kernel, arch, constants, warps, stages=3, source=ASTSource):
    signature = {
        name: (
            "constexpr"
            if name in constants
            else _TYPES.get(name, "*i32" if name.endswith("_ptr") else "i32")
        )
        for name in kernel.arg_names
    }
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        if name.endswith(("_ptr", "_stride"))
    }
    return triton.compile(
        source(kernel, signature, constexprs=constants, attrs=aligned),
        target=GPUTarget("cuda", arch, 32),
        options={"num_warps": warps, "num_stages": stages},
    )


def report(name, arch, heads, compiled):
    used = [word for word in _INSTRUCTIONS if word in compiled.asm["ptx"]]
    return {
        "kernel": name,
        "arch": arch,
        "heads": heads,
        "tensor_core": used,
        **resources(compiled),
    }


def main():
    results = []
    for arch in _PORTABLE_ARCHS:
        for heads in (16, 64):
            launch = portable_launch(heads)
            constants = {
                **_SHAPE,
                "BLOCK_H": launch.block_heads,
                "BLOCK_N": launch.block_candidates,
                "INTERPRETED": False,
            }
            compiled = compile_kernel(
                nvfp4_mla.sparse_mla_kernel, arch, constants, launch.num_warps, 1
            )
            results.append(report("portable", arch, heads, compiled))
        merge = compile_kernel(
            nvfp4_mla.merge_kernel, arch, {"HAS_SINK": True, "MAX_SPLITS": 32}, 4
        )
        results.append(report("merge", arch, 64, merge))
    kernel = nvfp4_mla_sm90.sparse_mla_kernel
    compiled = compile_kernel(
        kernel,
        90,
        {**_SHAPE},
        nvfp4_mla_sm90.CONSUMER_WARPS,
        source=_gluon_source,
    )
    results.append(report("hopper", 90, 64, compiled))
    print(json.dumps(results))


def _gluon_source(kernel, signature, constexprs, attrs):
    by_position = {
        (kernel.arg_names.index(name),): value for name, value in constexprs.items()
    }
    return GluonASTSource(kernel, signature, constexprs=by_position, attrs=attrs)


if __name__ == "__main__":
    sys.exit(main())
