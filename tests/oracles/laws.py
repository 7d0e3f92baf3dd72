"""Laws by scipy, from the two numbers that a head gives."""

from scipy import stats


def scipy_law(kind, parameters, *, freedom=None):
    first, second = parameters[..., 0].astype(float), parameters[..., 1].astype(float)
    if kind == "normal":
        return stats.norm(first, second)
    if kind == "student_t":
        return stats.t(freedom, first, second)
    # Mean μ and variance μ + α μ², as DeepAR writes it, are scipy's n = 1 / α and p = 1 / (1 + α μ).
    return stats.nbinom(1 / second, 1 / (1 + second * first))
