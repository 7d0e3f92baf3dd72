"""What fit trains on, what it falls back to, that it repeats, and that it can be stopped."""

import functools
import hashlib
import json
import random
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from txl_ts import TXLForecaster
from txl_ts.errors import ColumnError, FileFormatError, ParameterError, ShortSeriesWarning
from txl_ts.estimators import fitting
from txl_ts.training import Checkpoint, Trainer

ROOT = Path(__file__).parents[1]
VALUES = ["TXL", "TXL_ql0.1", "TXL_ql0.8"]


def weights(model):
    return {name: tensor.numpy().copy() for name, tensor in model._model.state_dict().items()}


def same(a, b):
    a, b = weights(a), weights(b)
    return all(a[name].tobytes() == b[name].tobytes() for name in a)


def changed_tail(rows, n, change):
    """The last ``n`` rows of each series, changed."""
    tail = rows.groupby("unique_id").cumcount(ascending=False) < n
    return rows.assign(y=rows.y.where(~tail, change(rows.y)))


@pytest.fixture(scope="module")
def rows(make_rows):
    return make_rows(2, 70)


@pytest.fixture(scope="module")
def linear(tiny):
    return {**tiny, "max_epochs": 0}


@pytest.fixture(scope="module")
def once(tiny):
    return {**tiny, "max_epochs": 1}


# ------------------------------------------------------------------------------------------------------ validation rows


@pytest.fixture
def unchosen(monkeypatch):
    """Validation rows that choose nothing: a middle penalty, a spread of one, the last epoch."""
    original = fitting.fit_linear_path
    monkeypatch.setattr(
        fitting, "fit_linear_path", lambda model, train, validation, **kwargs: original(model, train, None, **kwargs)
    )
    monkeypatch.setattr(Trainer, "validation_loss", lambda trainer: 1.0 / (1 + trainer.progress.history.epochs))


@pytest.mark.usefixtures("unchosen")
@pytest.mark.parametrize("changes", [{}, {"scaler": "standard"}, {"loss": "mase"}])
def test_the_last_val_size_rows_are_never_trained_on(once, rows, changes):
    """Where they choose nothing, their values leave every weight as it is, to the bit."""
    model = TXLForecaster(**{**once, **changes}).fit(rows, val_size=10)
    for change in (lambda y: 1e6 - 3 * y, lambda y: y * np.nan):
        other = TXLForecaster(**{**once, **changes}).fit(changed_tail(rows, 10, change), val_size=10)
        assert same(model, other)
    one_more = TXLForecaster(**{**once, **changes}).fit(changed_tail(rows, 11, lambda y: 1 - y), val_size=10)
    assert not same(model, one_more)


def test_the_validation_rows_choose_the_penalty_and_the_spread(linear, rows):
    model = TXLForecaster(**linear).fit(rows, val_size=10)
    other = TXLForecaster(**linear).fit(changed_tail(rows, 10, lambda y: 30 * y), val_size=10)
    assert other.validation_mae_ > 3 * model.validation_mae_
    a, b = (m.predict(df=rows) for m in (model, other))
    assert ((b["TXL_ql0.8"] - b["TXL_ql0.1"]) > 1.2 * (a["TXL_ql0.8"] - a["TXL_ql0.1"])).all()


def test_validation_errors_are_those_of_a_backtest_over_the_validation_rows(linear, rows):
    model = TXLForecaster(**linear).fit(rows, val_size=10)
    other = TXLForecaster(**linear).fit(changed_tail(rows, 10, lambda y: y * np.nan), val_size=10)  # no fitted end yet
    errors = []
    for k in range(8):
        left = rows.groupby("unique_id").cumcount(ascending=False)
        history = rows[left >= 10 - k]
        out = model.predict(df=history).merge(rows, on=["unique_id", "ds"], how="inner")
        errors.append(out.y - out.TXL)
    errors = pd.concat(errors).dropna()
    assert model.validation_mae_ == pytest.approx(errors.abs().mean(), rel=1e-5)
    assert model.validation_mse_ == pytest.approx((errors**2).mean(), rel=1e-5)
    assert np.isnan(other.validation_mae_)


def test_without_val_size_all_rows_are_trained_on(once, rows, monkeypatch):
    seen = []
    original = Trainer.__init__

    def spy(self, model, train, validation, settings):
        seen.append((train.pieces.stop - train.pieces.first, validation, settings.max_epochs))
        original(self, model, train, validation, settings)

    monkeypatch.setattr(Trainer, "__init__", spy)
    monkeypatch.setattr(Trainer, "validation_loss", lambda trainer: 1.0 / (1 + trainer.progress.history.epochs))
    model = TXLForecaster(**once).fit(rows)
    (first, validation, _), (second, none, epochs) = seen
    assert first.tolist() == [70 - 7, 77 - 7]  # a tenth chooses
    assert validation is not None
    assert (second.tolist(), none, epochs) == ([70, 77], None, 1)
    other = TXLForecaster(**once).fit(changed_tail(rows, 1, lambda y: y + 5))
    assert not same(model, other)


def test_history_tells_of_the_linear_path_and_each_epoch(fitted):
    history = fitted.history_
    assert len(history.validation) == history.epochs + 1 == 3
    assert len(history.train) == 2
    assert np.isfinite(history.train).all()


# ------------------------------------------------------------------------------------------- series that are too simple


def last_value(df):
    return df.groupby("unique_id").y.last()


def test_series_that_are_too_short_are_said_and_forecast_the_last_value(linear):
    df = pd.DataFrame(
        {"unique_id": ["a"] * 5 + ["b"] * 2 + ["c"], "ds": pd.date_range("2024-01-01", periods=8, freq="h")}
    ).assign(y=[1.0, 4.0, 2.0, 5.0, 3.0, 7.0, 9.0, -2.0])
    with pytest.warns(ShortSeriesWarning) as caught:
        model = TXLForecaster(**linear).fit(df)
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 2
    assert "2 of 3 series have no more than patch_len=4 rows to train on" in texts[0]
    assert "no series is long enough to hold out rows for h=3" in texts[1]
    assert "the forecast is the last value" in texts[1]
    out = model.predict()
    for name, value in last_value(df).items():
        np.testing.assert_allclose(out[out.unique_id == name].TXL, value, rtol=1e-5, atol=1e-5)


def test_warnings_about_short_series_point_at_the_line_of_the_caller(linear):
    df = pd.DataFrame({"unique_id": "a", "ds": pd.date_range("2024-01-01", periods=5, freq="h"), "y": np.arange(5.0)})
    with pytest.warns(ShortSeriesWarning) as caught:
        TXLForecaster(**linear).fit(df)
    assert {warning.filename for warning in caught} == {__file__}


def test_one_short_series_among_long_ones_is_forecast_by_the_model_of_the_others(linear, rows):
    short = pd.concat([rows, pd.DataFrame({"unique_id": "short", "ds": rows.ds[:3], "y": [4.0, 4.5, 5.0]})])
    with pytest.warns(ShortSeriesWarning, match="1 of 3 series have no more than patch_len=4 rows"):
        model = TXLForecaster(**linear).fit(short)
    out = model.predict(ids=["short"])
    assert np.isfinite(out[VALUES]).all(axis=None)
    assert (out.TXL - 5).abs().max() < 5


def test_more_validation_rows_than_rows_are_said(linear, rows):
    with pytest.warns(ShortSeriesWarning, match="2 of 2 series have no more than patch_len=4 rows.*val_size"):
        model = TXLForecaster(**linear).fit(rows, val_size=1000)
    out = model.predict()
    for name, value in last_value(rows.dropna()).items():
        if not np.isnan(rows[rows.unique_id == name].y.iloc[-1]):
            np.testing.assert_allclose(out[out.unique_id == name].TXL, value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("level", [0.0, 5.0, -3.0, 101325.0])
@pytest.mark.parametrize("n_epochs", [0, 1])
def test_a_constant_series_is_forecast_as_the_constant(tiny, rows, level, n_epochs):
    """Its deviation is 0: alone, and among series that move."""
    constant = pd.DataFrame({"unique_id": "flat", "ds": pd.date_range("2024-01-01", periods=60, freq="h"), "y": level})
    sizes = {**tiny, "max_epochs": n_epochs}
    for df in (constant, pd.concat([constant, rows])) if n_epochs == 0 else (constant,):
        out = TXLForecaster(**sizes).fit(df).predict(ids=["flat"])
        np.testing.assert_array_equal(out[VALUES], np.full((3, 3), np.float32(level)))


def test_a_series_without_any_value_is_refused_by_name(linear, rows):
    empty = pd.DataFrame({"unique_id": "void", "ds": rows.ds[:20], "y": np.nan})
    with pytest.raises(ColumnError, match=r"no value at all.*'void'"):
        TXLForecaster(**linear).fit(pd.concat([rows, empty]))
    with pytest.raises(ColumnError, match="no value at all"):
        TXLForecaster(**linear).fit(empty)


def test_no_epochs_leave_the_linear_path_alone(linear, rows):
    model = TXLForecaster(**linear).fit(rows)
    assert model.history_.train == []
    assert not weights(model)["head.linear.weight"].any()


@pytest.mark.parametrize("n_rows", [24, 31, 60])
def test_a_series_shorter_than_the_look_back_is_forecast_by_its_season(linear, n_rows):
    """The oracle: what comes next is what came a season ago."""
    t, rng = np.arange(600), np.random.default_rng(0)
    wave = rng.normal(size=24)[t % 24]
    model = TXLForecaster(**{**linear, "freq": 1, "lookback": 96, "season_length": 24, "half_life": 1e6, "h": 6})
    model.fit(pd.DataFrame({"unique_id": "long", "ds": t, "y": wave + 0.1 * rng.normal(size=600)}), val_size=48)
    fresh = pd.DataFrame({"unique_id": "new", "ds": t[:n_rows], "y": 50 + 3 * wave[:n_rows]})
    said = model.predict(df=fresh)["TXL"].to_numpy()
    np.testing.assert_allclose(said, 50 + 3 * wave[n_rows : n_rows + 6], atol=0.6)
    assert model.params_["lookback_season"] == 24


def test_no_look_back_leaves_the_recurrent_path_alone(once, rows):
    model = TXLForecaster(**{**once, "lookback": 0}).fit(rows)
    assert model.config_.lookback == 0
    assert np.isfinite(model.predict()[VALUES]).all(axis=None)


def test_no_memory_and_one_row_patches_work(once, rows):
    for sizes in ({"mem_len": 0}, {"patch_len": 1, "stride": 1}, {"stride": 7}):
        assert np.isfinite(TXLForecaster(**{**once, **sizes}).fit(rows).predict()[VALUES]).all(axis=None)


# ---------------------------------------------------------------------------------------------------------- determinism


@pytest.fixture(scope="module")
def dropped(once):
    """Parameters with dropout: torch's generator is used."""
    return {**once, "dropout": 0.3, "random_state": 7}


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(dropped, rows):
    first = TXLForecaster(**dropped).fit(rows, val_size=10)
    torch.manual_seed(123)
    assert same(first, TXLForecaster(**dropped).fit(rows, val_size=10))
    assert not same(first, TXLForecaster(**{**dropped, "random_state": 8}).fit(rows, val_size=10))


def test_a_fresh_process_gives_the_same_bits(dropped, rows, tmp_path):
    """T8, at the same number of threads."""
    rows.to_parquet(tmp_path / "rows.parquet")
    code = f"""
import sys, hashlib; sys.path[:0] = [{str(ROOT)!r}]
import pandas as pd, torch
torch.set_num_threads({torch.get_num_threads()})
from txl_ts import TXLForecaster
model = TXLForecaster(**{dropped!r}).fit(pd.read_parquet({str(tmp_path / "rows.parquet")!r}), val_size=10)
digest = hashlib.sha256()
for tensor in model._model.state_dict().values():
    digest.update(tensor.numpy().tobytes())
digest.update(model.predict()[{VALUES!r}].to_numpy().tobytes())
print(digest.hexdigest())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    digest = hashlib.sha256()
    model = TXLForecaster(**dropped).fit(rows, val_size=10)
    for array in weights(model).values():
        digest.update(array.tobytes())
    digest.update(model.predict()[VALUES].to_numpy().tobytes())
    assert done.stdout.strip() == digest.hexdigest()


def test_global_random_numbers_threads_and_settings_stay_as_they_were(dropped, rows, tmp_path):
    def surroundings():
        return (
            torch.get_rng_state().numpy().tobytes(),
            np.random.get_state()[1].tobytes(),  # noqa: NPY002 - the global one, to see it stay
            random.getstate(),
            torch.get_num_threads(),
            torch.get_num_interop_threads(),
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            list(warnings.filters),
        )

    before = surroundings()
    model = TXLForecaster(**dropped).fit(rows)
    assert surroundings() == before
    model.predict()
    model.predict(df=rows)
    model.update(rows.assign(ds=rows.ds + pd.Timedelta(days=9)))
    model.cross_validation(rows, n_windows=2)
    model.save(tmp_path / "a")
    TXLForecaster.load(tmp_path / "a").predict()
    assert surroundings() == before


def test_the_users_random_numbers_do_not_reach_the_fit(dropped, rows):
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    a = TXLForecaster(**dropped).fit(rows, val_size=10)
    torch.manual_seed(2)
    np.random.seed(2)  # noqa: NPY002
    assert same(a, TXLForecaster(**dropped).fit(rows, val_size=10))


# ---------------------------------------------------------------------------------------------------------- checkpoints


class Interrupted(Exception):  # noqa: N818
    pass


@pytest.fixture(scope="module")
def uninterrupted(dropped, rows):
    """Fits that were never stopped, by val_size; all rows are trained on for one epoch at least."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "validation_loss", lambda trainer: 1.0 / (1 + trainer.progress.history.epochs))
        return {size: TXLForecaster(**dropped).fit(rows, val_size=size) for size in (10, None)}


def interruptible(monkeypatch, *, every, after):
    """Write every few steps, and stop at the callback number ``after``, as a killed process would."""
    monkeypatch.setattr(fitting, "Checkpoint", functools.partial(Checkpoint, every=every))
    calls, original = [], Checkpoint.after_step

    def after_step(self, trainer):
        original(self, trainer)
        calls.append(trainer.progress.step)
        if len(calls) == after:
            raise Interrupted

    monkeypatch.setattr(Checkpoint, "after_step", after_step)
    monkeypatch.setattr(Trainer, "validation_loss", lambda trainer: 1.0 / (1 + trainer.progress.history.epochs))


# An epoch of these rows has about 30 steps, and a callback at its end.
STOPS = {"in the epoch": (10, 17), "before the first write": (10, 5), "at its end": (10, 31), "all rows": (10, 45)}


# With val_size there is no second run over all rows.
@pytest.mark.parametrize(
    ("val_size", "stop"), [(size, stop) for size in (10, None) for stop in STOPS if size is None or stop != "all rows"]
)
def test_a_fit_that_was_stopped_goes_on_to_the_same_bits(
    dropped, rows, uninterrupted, tmp_path, monkeypatch, val_size, stop
):
    every, after = STOPS[stop]
    folder = tmp_path / "run"
    folder.mkdir()
    with monkeypatch.context() as patch:
        interruptible(patch, every=every, after=after)
        with pytest.raises(Interrupted):
            TXLForecaster(**dropped).fit(rows, val_size=val_size, checkpoint=folder)
    with monkeypatch.context() as patch:
        interruptible(patch, every=every, after=10**9)
        model = TXLForecaster(**dropped).fit(rows, val_size=val_size, checkpoint=folder)
        assert same(model, uninterrupted[val_size])
        assert model.history_ == uninterrupted[val_size].history_
        pd.testing.assert_frame_equal(model.predict(), uninterrupted[val_size].predict(), check_exact=True)
        again = TXLForecaster(**dropped).fit(rows, val_size=val_size, checkpoint=folder)  # nothing left to do
        assert same(again, uninterrupted[val_size])


def test_a_checkpoint_folder_is_made_when_missing(once, rows, tmp_path):
    folder = tmp_path / "runs"
    TXLForecaster(**once).fit(rows, val_size=10, checkpoint=folder)
    assert folder.is_dir()


@pytest.fixture(scope="module")
def finished(once, rows, tmp_path_factory):
    """The folder of a fit with val_size=10."""
    folder = tmp_path_factory.mktemp("finished")
    TXLForecaster(**once).fit(rows, val_size=10, checkpoint=folder)
    return folder


OTHERS = {
    "rows": ({}, lambda rows: rows.assign(y=rows.y + 1), "rows was"),
    "d_model": ({"d_model": 12}, lambda rows: rows, "d_model was 8 and is 12"),
    "learning_rate": ({"learning_rate": 1e-3}, lambda rows: rows, "learning_rate was 0.01 and is 0.001"),
    "seed": ({"random_state": 5}, lambda rows: rows, "random_state was 0 and is 5"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_the_checkpoint_of_other_rows_or_parameters_is_refused_with_what_differs(once, rows, finished, what):
    changes, other, text = OTHERS[what]
    with pytest.raises(ParameterError, match=rf"(?s)belongs to another run.*{text}.*another folder"):
        TXLForecaster(**{**once, **changes}).fit(other(rows), val_size=10, checkpoint=finished)


def test_other_validation_rows_are_another_run(once, rows, finished):
    with pytest.raises(ParameterError, match="belongs to another run"):
        TXLForecaster(**once).fit(rows, val_size=9, checkpoint=finished)


def test_a_bar_or_none_is_the_same_run(once, rows, finished, capsys):
    TXLForecaster(**once, verbose=True).fit(rows, val_size=10, checkpoint=finished)
    assert "Validation loss" in capsys.readouterr().out


def test_a_damaged_checkpoint_is_refused(once, rows, finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    weights_file = max((folder / "choose").glob("weights-*.safetensors"))
    data = bytearray(weights_file.read_bytes())
    data[len(data) // 2] ^= 1
    weights_file.write_bytes(data)
    with pytest.raises(FileFormatError, match="damaged"):
        TXLForecaster(**once).fit(rows, val_size=10, checkpoint=folder)


# ------------------------------------------------------------------------------------------------------------- learning


def test_a_noisy_season_is_forecast_far_better_than_by_its_last_value(tiny):
    rng = np.random.default_rng(0)
    t = np.arange(400)
    df = pd.DataFrame({"unique_id": "a", "ds": pd.date_range("2024-01-01", periods=400, freq="h")})
    df["y"] = np.sin(2 * np.pi * t / 24) + rng.normal(0, 0.1, 400)
    model = TXLForecaster(**{**tiny, "h": 6, "max_epochs": 1})
    out = model.cross_validation(df, n_windows=40)
    last = out.cutoff.map(df.set_index("ds").y)
    error, naive = (out.y - out.TXL).abs().mean(), (out.y - last).abs().mean()
    assert error < 0.3 * naive
    inside = ((out["TXL_ql0.1"] <= out.y) & (out.y <= out["TXL_ql0.8"])).mean()
    assert 0.5 < inside < 0.9  # 0.7 is asked for


def test_the_recurrent_path_learns_what_no_linear_map_can(tiny):
    """The logistic map: the next value is a parabola of this one, uncorrelated with it."""
    y = [0.3]
    for _ in range(399):
        y.append(3.99 * y[-1] * (1 - y[-1]))
    df = pd.DataFrame({"unique_id": "a", "ds": pd.date_range("2024-01-01", periods=400, freq="h"), "y": y})
    sizes = {"h": 1, "patch_len": 2, "stride": 1, "mem_len": 2, "d_model": 16, "d_ff": 32, "dropout": 0.0}
    sizes |= {"n_layers": 1, "max_epochs": 6, "segment_len": 16}
    model = TXLForecaster(**{**tiny, **sizes}).fit(df, val_size=57)
    alone, best = model.history_.validation[0], min(model.history_.validation)
    assert model.history_.best_epoch > 0
    assert best < 0.5 * alone


# --------------------------------------------------------------------------------------------------------------- memory

# Rows of one series of 24-hour seasons; peaks of the resident size, in MiB, of reading alone and of the whole fit.
MEMORY = """
import json, sys
sys.path[:0] = [ROOT]
import numpy as np, pandas as pd, torch
from txl_ts import TXLForecaster
from txl_ts.frames import read_long

def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(name))

def peak_of(call):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak starts again
    before = status("VmRSS")
    call()
    return status("VmHWM") - before

n = N_ROWS // N_SERIES
t = np.arange(n)
rng = np.random.default_rng(0)
df = pd.DataFrame({
    "unique_id": pd.Categorical.from_codes(np.repeat(np.arange(N_SERIES), n), [f"s{i}" for i in range(N_SERIES)]),
    "ds": np.tile(np.datetime64("2000-01-01", "us") + t * np.timedelta64(3600, "s"), N_SERIES),
    "y": (np.sin(t * 2 * np.pi / 24) + rng.normal(0, 0.1, (N_SERIES, n))).ravel(),
})
sizes = dict(h=2, freq="1h", quantiles=(0.1, 0.5, 0.9), patch_len=8, stride=2, mem_len=4, lookback=16, d_model=8,
             n_heads=2, n_layers=1, segment_len=128, batch_size=32, max_epochs=1, random_state=0)
small = df[df.unique_id.isin(["s0"])].head(2000).astype({"unique_id": str})
TXLForecaster(**sizes).fit(small)  # what is loaded and compiled at the first call is not of these rows
reading = peak_of(lambda: read_long(df, freq="1h"))
fitting = peak_of(lambda: TXLForecaster(**sizes).fit(df, val_size=48))
print(json.dumps({"frame": df.memory_usage(deep=True).sum() / 2**20, "reading": reading, "fitting": fitting}))
"""


def measure(n_rows, n_series):
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("needs Linux: the peak size of a process is read from /proc")
    code = MEMORY.replace("ROOT", repr(str(ROOT))).replace("N_ROWS", str(n_rows)).replace("N_SERIES", str(n_series))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_training_200_000_rows_takes_little_more_than_reading_them():
    """Windows of all rows would take 200,000 × 18 × 4 bytes = 14 MiB a copy, and attention over them far more."""
    told = measure(200_000, 50)
    assert told["fitting"] < told["reading"] + 96, told


@pytest.mark.soak
def test_training_5_million_rows_takes_no_more_than_reading_them_and_a_batch():
    """Reading holds some columns of all rows; training adds lanes × segment, whatever the number of rows."""
    told = measure(5_000_000, 200)
    assert told["fitting"] < told["reading"] + 96, told
    assert told["fitting"] < 5_000_000 * 100 / 2**20, told  # 100 bytes a row; the frame has 17
