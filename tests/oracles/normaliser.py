"""The running normaliser, row by row, for one lane and one channel, float64.

Three pairs of moments: ``raw`` of the values as they come, ``fast`` and ``slow`` of the values without their spikes. A
missing row makes the past weigh less and adds nothing.
"""

import math
from dataclasses import dataclass, field

LARGEST = 1e15
N_STANDARD_CLIP = 8
ROWS_BEFORE_CLIPPING = 16
SLOWER = 16
FLOOR = 0.05
AGE_CAP = 1e6


@dataclass
class Moments:
    """Exponentially weighted mean and variance, both divided by the weight that was given out so far."""

    rate: float
    mean: float = 0.0
    variance: float = 0.0
    weight: float = 0.0

    def decay(self):
        self.weight *= 1 - self.rate  # mean and variance are ratios: what is missing does not move them

    def add(self, x):
        before = (1 - self.rate) * self.weight
        self.weight = before + self.rate
        old, is_first = self.mean, before == 0
        self.mean = old + self.rate / self.weight * (x - old)
        gain = 0.0 if is_first else self.rate * (x - old) * (x - self.mean)
        self.variance = (before * self.variance + gain) / self.weight

    @property
    def deviation(self):
        return math.sqrt(self.variance)


@dataclass
class RowByRow:
    """Feed :meth:`step` one value after the other; None, NaN and Inf are missing."""

    half_life: float
    shift: float | None = None
    age: float = 0.0
    raw: Moments = field(init=False)
    fast: Moments = field(init=False)
    slow: Moments = field(init=False)

    def __post_init__(self):
        rate = 1 - 0.5 ** (1 / self.half_life)
        self.raw, self.fast = Moments(rate), Moments(rate)
        self.slow = Moments(1 - 0.5 ** (1 / (SLOWER * self.half_life)))
        # The weight that this many rows in a row leave; a hair less, so that rounding does not decide.
        self.trusted_weight = (1 - (1 - rate) ** ROWS_BEFORE_CLIPPING) * (1 - 1e-9)

    def step(self, x):
        if x is None or not math.isfinite(x):
            self.age = min(self.age + 1, AGE_CAP)
            for moments in (self.raw, self.fast, self.slow):
                moments.decay()
            return self.scale()
        self.age = 0.0
        if self.shift is None:
            self.shift = x
        value = min(max(x - self.shift, -LARGEST), LARGEST)
        clipped = value
        if self.raw.weight >= self.trusted_weight and self.raw.deviation > 0:
            width = N_STANDARD_CLIP * self.raw.deviation
            clipped = min(max(value, self.raw.mean - width), self.raw.mean + width)
        self.raw.add(value)
        self.fast.add(clipped)
        self.slow.add(clipped)
        return self.scale()

    def scale(self):
        """What is known at this row: a dict of shift, mean, deviation, drift and age."""
        slow = self.slow.deviation
        deviation = max(self.fast.deviation, FLOOR * slow)
        unit = deviation if deviation > 0 else 1.0
        level = min(max((self.fast.mean - self.slow.mean) / unit, -10.0), 10.0)
        spread = math.log(deviation / slow) if deviation > 0 and slow > 0 else 0.0
        return {
            "known": self.shift is not None,
            "shift": self.shift or 0.0,
            "mean": self.fast.mean,
            "deviation": deviation,
            "drift": (level, spread),
            "age": self.age,
        }
