"""Compile every store kernel without a device, and say what came out.

Run as a program without TRITON_INTERPRET: interpreted functions cannot be compiled.
Prints a JSON list of {kernel, arch, rule, conversions, fused, shared,
registers, spilled}.
"""

import json
import sys

import triton
from support.kernel_resources import resources
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sglang_dsv4_nvfp4.kernels import nvfp4_store

_TYPES = {
    "positions_ptr": "*i64",
    "slots_ptr": "*i32",
    "out_loc_ptr": "*i64",
    "plan_ptr": "*i32",
    "freqs_ptr": "*fp32",
    "cache_ptr": "*u8",
    "num_slots": "i32",
    "eps": "fp32",
    "kv_stride": "i32",
    "row_stride": "i32",
    "page_stride": "i32",
}
_UNALIGNED = ("num_slots", "eps")


# Kernel and what differs from the plain case; rows of the compressor are FP32.
_VARIANTS = (
    ("append_kernel", {}),
    ("append_kernel", {"UNIQUE_SLOTS": False}),
    ("window_store_kernel", {}),
    ("compressed_store_kernel", {}),
    (
        "compressed_store_kernel",
        {"IS_DECODE": False, "COMPRESS_RATIO": 128, "PAGE_SIZE": 2},
    ),
)


def compile_kernel(name, changes, arch, four_over_six):
    kernel = getattr(nvfp4_store, name)
    values = "*fp32" if name == "compressed_store_kernel" else "*bf16"
    constants = {
        "PAGE_SIZE": 64,
        "UNIQUE_SLOTS": True,
        "COMPRESS_RATIO": 4,
        "IS_DECODE": True,
        "FOUR_OVER_SIX": four_over_six,
        "NATIVE": arch >= 100,
        "PDL": True,
        "INTERPRETED": False,
        **changes,
    }
    constants = {
        key: value for key, value in constants.items() if key in kernel.arg_names
    }
    signature = {
        key: "constexpr" if key in constants else _TYPES.get(key, values)
        for key in kernel.arg_names
    }
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, key in enumerate(kernel.arg_names)
        if key not in constants and key not in _UNALIGNED
    }
    compiled = triton.compile(
        ASTSource(kernel, signature, constexprs=constants, attrs=aligned),
        target=GPUTarget("cuda", arch, 32),
        options={"num_warps": 1, "enable_fp_fusion": False},
    )
    return {
        "kernel": name,
        "arch": arch,
        "rule": "4over6" if four_over_six else "amax6",
        "conversions": compiled.asm["ptx"].count("cvt.rn.satfinite.e2m1x2.f32"),
        # The reciprocal's correction, and nothing that the compiler fused.
        "fused": compiled.asm["ptx"].count("fma.rn.f32"),
        **resources(compiled),
    }


def main():
    results = [
        compile_kernel(name, changes, arch, four_over_six)
        for name, changes in _VARIANTS
        for arch in (90, 100, 120, 121)
        for four_over_six in (False, True)
    ]
    print(json.dumps(results))


if __name__ == "__main__":
    sys.exit(main())
