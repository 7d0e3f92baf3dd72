"""Volume under precision and recall over soft labels, one threshold and one row at a time."""

import math


def volume(labels, scores, *, window, n_thresholds=250):
    """VUS-PR as TSB-AD measures it."""
    n, n_positive = len(labels), sum(labels)
    ordered = sorted(scores, reverse=True)
    picks = [int(i * (n - 1) / (n_thresholds - 1)) for i in range(n_thresholds)]
    ranges, i = [], 0
    while i < n:
        if labels[i]:
            j = i
            while j + 1 < n and labels[j + 1]:
                j += 1
            ranges.append((i, j))
            i = j
        i += 1
    areas = []
    for width in range(window + 1):
        half = width // 2
        soft = [
            1.0
            if labels[i]
            else min(
                1.0,
                sum(
                    math.sqrt(1 - gap / width)
                    for first, last in ranges
                    for gap in [first - i if i < first else i - last]
                    if 0 < gap <= half
                ),
            )
            for i in range(n)
        ]
        groups = []
        for first, last in ranges:
            covered = set(range(max(first - half, 0), min(last + half, n - 1) + 1))
            if groups and covered & groups[-1]:
                groups[-1] |= covered
            else:
                groups.append(covered)
        area, recall_before = 0.0, 0.0
        for pick in picks:
            alarmed = [i for i in range(n) if scores[i] >= ordered[pick]]
            found = sum(soft[i] for i in alarmed)
            beside = sum(soft[i] for i in alarmed if not labels[i])
            share_met = sum(1 for group in groups if group & set(alarmed)) / len(groups)
            recall = min(found / ((n_positive + n_positive + beside) / 2), 1.0) * share_met
            area += (recall - recall_before) * found / len(alarmed)
            recall_before = recall
        areas.append(area)
    return sum(areas) / len(areas)
