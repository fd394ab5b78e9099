"""Shares of right answers: their standard error, and whether two of them differ."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """``right`` of ``count`` answers."""

    right: int
    count: int

    @property
    def value(self) -> float:
        return self.right / self.count

    @property
    def standard_error(self) -> float:
        return math.sqrt(self.value * (1 - self.value) / self.count)


@dataclass(frozen=True)
class Difference:
    """A two-proportion test: sigmas between two shares, and how likely as many are by
    chance alone, in either direction."""

    sigmas: float
    p_value: float


def compare(one: Share, other: Share) -> Difference:
    """``one`` less ``other``, over the standard error of a difference of equal shares."""
    pooled = (one.right + other.right) / (one.count + other.count)
    error = math.sqrt(pooled * (1 - pooled) * (1 / one.count + 1 / other.count))
    sigmas = (one.value - other.value) / error if error else 0.0
    return Difference(sigmas, math.erfc(abs(sigmas) / math.sqrt(2)))
