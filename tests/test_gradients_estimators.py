"""Gradients through segments, from the estimators."""

import numpy as np
import pandas as pd
import pytest

from txl_ts import TXLAnomalyDetector, TXLForecaster, TXLRegressor
from txl_ts.errors import ParameterError

SMALL = {"d_model": 8, "n_heads": 2, "n_layers": 1, "max_epochs": 2, "batch_size": 2, "segment_len": 4, "mem_len": 6}
HOPS = {"bptt_segments": 3, "memory_gradient": (1, 1, 0.5, 0.5, 0.2, 0), "memory_grad_clip": 0.5}


def frame():
    t = np.arange(150)
    return pd.DataFrame({"unique_id": "a", "ds": t, "y": np.sin(t / 3)})


def forecaster(**how):
    sizes = {"patch_len": 4, "stride": 2, "lookback": 8, "half_life": 20}
    return TXLForecaster(h=2, freq=1, **SMALL, **sizes, **how).fit(frame())


def regressor(**how):
    X = np.random.default_rng(0).normal(size=(120, 2))
    return TXLRegressor(**SMALL, **how).fit(X, np.append(0, X[:-1, 0]))


def detector(**how):
    return TXLAnomalyDetector(**SMALL, **how).fit(np.random.default_rng(0).normal(size=(400, 2)))


@pytest.mark.parametrize("fit", [forecaster, regressor, detector])
def test_norms_of_hops_are_in_the_history_and_outlive_a_file(fit, tmp_path):
    model = fit(**HOPS, checkpoint_activations=True)
    assert np.shape(model.history_.hop_norms) == (len(model.history_.train), 2)
    assert np.min(model.history_.hop_norms) > 0
    model.save(tmp_path / "model.txl")
    loaded = type(model).load(tmp_path / "model.txl")
    assert loaded.history_ == model.history_
    assert tuple(loaded.memory_gradient) == HOPS["memory_gradient"]
    assert not fit().history_.hop_norms


def test_a_checkpointed_run_of_a_forecaster_goes_on(tmp_path):
    whole = forecaster(**HOPS)
    t = forecaster(**HOPS)
    for _ in range(2):  # the second finds the first one finished
        t.fit(frame(), checkpoint=tmp_path / "run")
        assert t.history_ == whole.history_


@pytest.mark.parametrize("fit", [forecaster, regressor, detector])
def test_what_has_no_effect_is_refused(fit):
    with pytest.raises(ParameterError, match=r"memory_gradient=0\.5 is for gradients"):
        fit(memory_gradient=0.5)
