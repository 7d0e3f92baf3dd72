"""Memory policies as a user meets them: by name, with sizes that are told, in files, and refused where they must be."""

import numpy as np
import pandas as pd
import pytest

from txl_ts import TXLClassifier, TXLForecaster
from txl_ts.errors import FileFormatError, ParameterError
from txl_ts.estimators import files

SMALL = {"h": 2, "freq": 1, "season_length": 1, "quantiles": (0.1, 0.5, 0.9), "patch_len": 2, "lookback": 4}
SMALL |= {"mem_len": 3, "d_model": 8, "n_layers": 2, "n_heads": 2, "max_epochs": 1, "random_state": 0}


def frame(n_rows=120):
    t = np.arange(n_rows)
    rng = np.random.default_rng(0)
    parts = [pd.DataFrame({"unique_id": name, "ds": t, "y": rng.normal(size=n_rows).cumsum()}) for name in "ab"]
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def fitted():
    df = frame()
    model = TXLForecaster(**SMALL, memory="two_rate", memory_params={"n_slots": 5})
    return model.fit(df[df.ds < 100]), df


def test_a_forecaster_says_the_reach_and_all_parameters_of_its_policy(fitted):
    model, _ = fitted
    assert model.params_["memory_params"] == {"n_slots": 5, "every": 8}
    assert model.params_["stride"] == 1
    assert model.params_["reach"] == 2 * 5 * 8 + 1
    assert "two_rate of 3 visits" in "\n".join(model._report())


def test_updates_in_parts_and_a_file_in_between_give_the_same_forecasts(fitted, tmp_path):
    model, df = fitted
    model.save(tmp_path / "model.txl")
    whole, parts = (TXLForecaster.load(tmp_path / "model.txl") for _ in range(2))
    whole.update(df[df.ds >= 100])
    parts.update(df[(df.ds >= 100) & (df.ds < 103)])
    parts.save(tmp_path / "parts.txl")
    parts = TXLForecaster.load(tmp_path / "parts.txl")
    parts.update(df[df.ds >= 103])
    found, expected = parts.predict(), whole.predict()
    columns = [column for column in expected if column.startswith("TXL")]
    # Float32 keeps 7 digits; calls of other lengths sum in another order.
    np.testing.assert_allclose(found[columns], expected[columns], rtol=1e-4, atol=1e-4)


def test_a_file_that_claims_an_absurd_far_memory_is_refused(fitted, monkeypatch):
    config = {"class": "TXLForecaster", "model": fitted[0].config_.to_json()}
    config["model"] |= {"memory_params": {"n_slots": 2**40, "every": 8}}
    with pytest.raises(FileFormatError, match="claims a far memory of more than"):
        files._empty_model(config)


def test_segments_too_short_to_learn_from_are_refused():
    with pytest.raises(ParameterError, match=r"segment_len=8 must be longer than the 8 rows.*segment_len=32"):
        TXLForecaster(**SMALL, memory="gated", segment_len=8).fit(frame(60))


def test_a_wrong_name_is_refused_with_the_nearest():
    with pytest.raises(ParameterError, match=r"memory='gatd' is not known.*Did you mean 'gated'\?"):
        TXLForecaster(**SMALL, memory="gatd").fit(frame(60))


def test_auto_leaves_room_for_the_far_memory():
    sizes = {key: value for key, value in SMALL.items() if key != "mem_len"} | {"max_epochs": 0, "d_model": 32}
    fifo, far = (TXLForecaster(**sizes, stride=1, memory=name).fit(frame(60)).params_ for name in ("fifo", "two_rate"))
    assert far["mem_len"] < fifo["mem_len"]
    assert far["state_nbytes"] <= 128 * 1024


def test_a_classifier_takes_a_policy():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 2)).astype("float32")
    y = (np.convolve(X[:, 0], np.ones(5))[:90] > 0).astype(int)
    model = TXLClassifier(mem_len=3, d_model=8, n_heads=2, max_epochs=1, memory="gated", memory_params={"n_slots": 2})
    assert model.fit(X, y).predict_proba(X).shape == (90, 2)
    assert model.params_["memory"] == "gated"
