"""The NAB score, one row and one threshold at a time, as its paper tells it."""

import math


def position_score(y):
    """The scaled sigmoid: 1 far before the right edge of a window, 0 at it, −1 far behind it."""
    return -1.0 if y >= 3 else 2 / (1 + math.exp(5 * y)) - 1


def score(times, windows, is_alarm, *, tp, fn, fp):
    """Score of one file; alarms of the probation do not count."""
    n = len(times)
    first_scored = min(0.15 * n, 750)
    left = [times.index(window[0]) for window in windows]
    right = [times.index(window[1]) for window in windows]
    best = [-fn] * len(windows)
    lost = 0.0
    for i in range(n):
        if i < first_scored or not is_alarm[i]:
            continue
        inside = [k for k in range(len(windows)) if left[k] <= i <= right[k]]
        if inside:
            k = inside[0]
            relative = -(right[k] - i + 1) / (right[k] - left[k] + 1)
            best[k] = max(best[k], tp * position_score(relative) / position_score(-1.0))
            continue
        before = [k for k in range(len(windows)) if right[k] < i]
        if before:
            k = before[-1]
            lost += fp * position_score((i - right[k]) / (right[k] - left[k]))
        else:
            lost += fp * position_score(math.inf)
    return sum(best) + lost


def normalised(raw, n_windows, *, tp, fn):
    """0 for no alarm at all, 100 for one alarm at the left edge of each window."""
    return 100 * (raw + n_windows * fn) / (n_windows * (tp + fn))
