"""scikit-learn's own checks, in the configuration that is shipped; the report of all versions is benchmarks/results."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from txl_ts import TXLAnomalyDetector, TXLClassifier, TXLEncoder, TXLRegressor
from txl_ts.bench.check_estimator import CONTRADICTS_A_BUDGET, CONTRADICTS_A_MEMORY

ESTIMATORS = [TXLClassifier(), TXLRegressor(), TXLEncoder(), TXLAnomalyDetector()]


def expected(estimator):
    is_detector = isinstance(estimator, TXLAnomalyDetector)
    return {**CONTRADICTS_A_MEMORY, **(CONTRADICTS_A_BUDGET if is_detector else {})}


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected)
def test_scikit_learn_finds_nothing_but_the_memory(estimator, check):
    check(estimator)


class OneRowPerSeries:
    """Every row is a series of its own: nothing is remembered from row to row."""

    def _read(self, X, *, series_id, time, reset=False):
        # As a user would say it: series_id=np.arange(len(X)); data that cannot be counted is told by the estimator.
        ids = np.arange(len(X)) if series_id is None and hasattr(X, "__len__") else series_id
        return super()._read(X, series_id=ids, time=time, reset=reset)


class IndependentClassifier(OneRowPerSeries, TXLClassifier):
    """The classifier over rows that do not belong together."""


class IndependentRegressor(OneRowPerSeries, TXLRegressor):
    """The regressor over rows that do not belong together."""


class IndependentEncoder(OneRowPerSeries, TXLEncoder):
    """The encoder over rows that do not belong together."""


@pytest.mark.parametrize("name", CONTRADICTS_A_MEMORY)
@pytest.mark.parametrize("cls", [IndependentClassifier, IndependentRegressor, IndependentEncoder])
def test_with_one_series_per_row_even_the_memory_fails_no_check(cls, name):
    import sklearn.utils.estimator_checks as checks

    # Matrix products of other batch sizes differ in the last bits, and one value near 0 is enough to fail.
    getattr(checks, name)(cls.__name__, cls(deterministic=True))
