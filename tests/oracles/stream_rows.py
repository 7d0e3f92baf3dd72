"""Rows of a stream by brute force: all messages are known, sorted once, and looked up again for every row."""

import math


def tick_rows(messages, tags, tick):
    """Rows of the grid 0, tick, 2·tick, … from the first reading to the last: {stamp: {tag: newest reading since}}."""
    stamps = [stamp for _, stamp, _ in messages]
    first, last = math.ceil(min(stamps) / tick), math.ceil(max(stamps) / tick)
    rows = {}
    for k in range(first, last + 1):
        row = {}
        for tag in tags:
            mine = [(s, v) for t, s, v in messages if t == tag and (k - 1) * tick < s <= k * tick]
            row[tag] = max(mine)[1] if mine else None
        rows[k * tick] = row
    return rows


def change_rows(messages, tags):
    """One row per stamp."""
    rows = {}
    for tag, stamp, value in sorted(messages, key=lambda one: one[1]):
        rows.setdefault(stamp, dict.fromkeys(tags))[tag] = value
    return rows


def raised(stamps, levels, *, over, within):
    """For each row, whether the condition held long enough: durations of rows over 1 in (now − within, now]."""
    found = []
    for i, now in enumerate(stamps):
        held = sum(
            stamps[j] - stamps[j - 1] if j else 0
            for j in range(i + 1)
            if levels[j] >= 1 and (stamps[j] > now - within or j == i)
        )
        found.append(levels[i] >= 1 and held >= over)
    return found
