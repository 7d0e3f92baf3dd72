"""The equal-context ridge, one window at a time and solved by scikit-learn."""

import numpy as np
from sklearn.linear_model import Ridge


def fit(series, *, h, look_back, penalty, stop):
    """Coefficients (look_back + 1, h) from all windows whose targets lie before ``stop[i]`` of series ``i``."""
    inputs, targets = [], []
    for rows, end in zip(series, stop, strict=True):
        for first_target in range(look_back, end - h + 1):
            last = rows[first_target - 1]
            inputs.append([rows[j] - last for j in range(first_target - look_back, first_target)] + [1.0])
            targets.append([rows[j] - last for j in range(first_target, first_target + h)])
    ridge = Ridge(alpha=penalty, fit_intercept=False, solver="svd").fit(np.array(inputs), np.array(targets))
    return ridge.coef_.T, len(inputs)


def errors(rows, *, weights, h, look_back, first, stop):
    """Mean squared and absolute error over all windows of one series whose targets lie in [first, stop)."""
    squared, absolute = [], []
    for first_target in range(first, stop - h + 1):
        last = rows[first_target - 1]
        seen = np.append(rows[first_target - look_back : first_target] - last, 1.0)
        for step in range(h):
            error = float(seen @ weights[:, step]) + last - rows[first_target + step]
            squared.append(error**2)
            absolute.append(abs(error))
    return np.mean(squared), np.mean(absolute)
