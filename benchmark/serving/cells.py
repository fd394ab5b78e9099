"""What is compared: how a server is spread over GPUs, and the load it gets."""

from __future__ import annotations

from dataclasses import dataclass

_PREFILL_CP = ("--enable-prefill-cp", "--cp-strategy", "interleave")
# SGLang's options of each topology; the GPUs' number follows from them.
TOPOLOGIES: dict[str, tuple[str, ...]] = {
    "none": (),
    "dp4": ("--tp-size", "4", "--dp-size", "4", "--enable-dp-attention"),
    "cp2xpp2": ("--tp-size", "2", "--pp-size", "2", *_PREFILL_CP),
    "cp4": ("--tp-size", "4", *_PREFILL_CP),
    "pp4": ("--pp-size", "4"),
}


@dataclass(frozen=True)
class Workload:
    """One load: tokens of a prompt and of its answer, and how many are under way."""

    input_len: int
    output_len: int
    concurrency: int
    num_prompts: int

    @property
    def name(self) -> str:
        return (
            f"isl{self.input_len}-osl{self.output_len}-c{self.concurrency}"
            f"-n{self.num_prompts}"
        )


# The loads of the original patch; it names no output length for the first two.
PRESETS: dict[str, Workload] = {
    "8k-c8": Workload(8192, 256, concurrency=8, num_prompts=64),
    "8k-c32": Workload(8192, 256, concurrency=32, num_prompts=256),
    "32k-b1": Workload(32768, 8, concurrency=1, num_prompts=8),
    "32k-b8": Workload(32768, 8, concurrency=8, num_prompts=32),
}


def workload(text: str) -> Workload:
    """A preset's name, or ``ISL:OSL:CONCURRENCY:PROMPTS``.

    Raises:
        ValueError: it is neither.
    """
    if text in PRESETS:
        return PRESETS[text]
    try:
        numbers = [int(part) for part in text.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) != 4 or min(numbers) < 1:
        raise ValueError(
            f"workload {text!r} is neither of {', '.join(PRESETS)}, nor "
            "ISL:OSL:CONCURRENCY:PROMPTS"
        )
    return Workload(*numbers)
