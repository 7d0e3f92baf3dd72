"""Relative effective context length and cut contexts, written out: one position, one lane, one row at a time.

Dai et al. (2019), Transformer-XL (arXiv 1901.02860), appendix C.
"""

import math


def relative_length(losses, contexts, *, r, threshold, is_nll):
    """``losses[model][context][position]``; gives a context per model."""
    n_positions = len(losses[0][0])
    n_hard = max(round(r * n_positions), 1)
    lengths = []
    for model in range(len(losses)):
        short = 0
        for long in range(1, len(contexts)):
            best = [min(losses[m][short][t] for m in range(len(losses))) for t in range(n_positions)]
            hard = sorted(range(n_positions), key=lambda t: (-best[t], t))[:n_hard]
            before = sum(best[t] for t in hard) / n_hard
            after = sum(min(best[t], losses[model][long][t]) for t in hard) / n_hard
            gain = (math.exp(before) - math.exp(after)) / math.exp(before) if is_nll else (before - after) / before
            if gain < threshold:
                break
            short = long
        lengths.append(contexts[short])
    return lengths
