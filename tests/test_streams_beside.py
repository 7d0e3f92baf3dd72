"""Streams with columns beside the target, and with several targets: what `update` and `predict` say, row by row.

The torch twin is stepped in most tests; one graph with everything in it is exported for the whole session.
"""

import copy
import json

import numpy as np
import pandas as pd
import pytest

from tests.test_covariates import LISTS, ahead_of, beside, distance
from txl_ts import TXLForecaster
from txl_ts.checks import check_session
from txl_ts.errors import ColumnError, ExportError, FileFormatError, ParameterError, ShapeError, StampError, StateError
from txl_ts.live import LiveSession
from txl_ts.runtime import StreamSession, read_contract
from txl_ts.training import Trainer

ZONE = "Australia/Melbourne"
LEVELS = [0.1, 0.5, 0.8]
KNOWN = ["temp", "free"]
ROLES = ["load", "mode", "temp", "free"]
N_COMING = 14
# Another grouping of the same float32 sums.
CLOSE = 1e-5


@pytest.fixture(scope="module")
def history(make_rows):
    """Rows up to the day before a clock change, in a zone that has one."""
    rows = beside(make_rows(n_rows=120, start="2024-04-01"))
    rows["ds"] = rows.ds.dt.tz_localize(ZONE)
    return rows.assign(flow=2 * rows.y + np.sin(np.arange(len(rows))))


@pytest.fixture(scope="module")
def coming(history):
    rows = ahead_of(history, N_COMING)
    return rows.assign(flow=2 * rows.y + 1)


@pytest.fixture(scope="module")
def static():
    return pd.DataFrame({"unique_id": ["T1", "T2", "T3"], "size": [1.0, np.nan, 2.0], "region": ["n", "s", None]})


def fit(tiny, history, static, **names):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "validation_loss", lambda trainer: 1.0 / (1 + trainer.progress.history.epochs))
        model = TXLForecaster(**tiny, calendar=["hour", "weekday"])
        return model.fit(history, **LISTS, static_df=static, val_size=12, **names)


@pytest.fixture(scope="module")
def covered(tiny, history, static):
    """One target and all kinds of columns; never changed."""
    return fit(tiny, history.drop(columns="flow"), static)


@pytest.fixture(scope="module")
def both(tiny, history, static):
    """Two targets and all kinds of columns; never changed."""
    return fit(tiny, history, static, target_col=["y", "flow"])


@pytest.fixture(scope="module")
def exported(both, tmp_path_factory):
    """The graphs of ``both``, and its memories."""
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    path = tmp_path_factory.mktemp("beside") / "both.onnx"
    both.export_onnx(path)
    both.export_state(path.with_suffix(".txl"))
    return path


def restored(model, tmp_path):
    model.export_state(tmp_path / "state.txl")
    session = model.live()
    session.restore(tmp_path / "state.txl")
    return session


def row_of(row, targets=("y",), columns=ROLES):
    return {"time": row.ds.to_pydatetime(), "values": {name: getattr(row, name) for name in (*targets, *columns)}}


def calls(coming, n, targets=("y",), h=3):
    """The next rows of all series as calls of one row each, with what is known ahead; and the frame of the latter."""
    for k in range(n):
        now = coming.groupby("unique_id").nth(k)
        ahead = pd.concat([rows.iloc[k + 1 : k + 1 + h] for _, rows in coming.groupby("unique_id")])
        call = {}
        for row in now.itertuples():
            mine = ahead[ahead.unique_id == row.unique_id]
            futr = {name: mine[name].to_numpy() for name in KNOWN}
            call[row.unique_id] = row_of(row, targets) | {"futr": futr}
        yield call, now, ahead[["unique_id", "ds", *KNOWN]]


def predicted(model, ahead, targets=("y",)):
    """What `predict` says, (series, h, targets, Q)."""
    out = model.predict(futr_df=ahead, on_missing="mask", quantiles=LEVELS)
    prefixes = [""] if len(targets) == 1 else [f"{name}_" for name in targets]
    names = [[f"{prefix}TXL_ql{level}" for level in LEVELS] for prefix in prefixes]
    return np.stack([out[some].to_numpy().reshape(-1, 3, len(LEVELS)) for some in names], axis=2)


def answered(out, n_targets=1):
    found = np.stack([out[name].quantiles for name in sorted(out)])
    return found.reshape(len(out), 3, n_targets, len(LEVELS))


# ------------------------------------------------------------------------------------------- as the estimator says it


@pytest.mark.parametrize("targets", [("y",), ("y", "flow")], ids=["one target", "two"])
def test_rows_stepped_with_what_is_known_ahead_give_what_update_and_predict_give(
    covered, both, coming, targets, tmp_path
):
    """Over the hour that the clock shows twice."""
    model = copy.deepcopy(covered if len(targets) == 1 else both)
    session = restored(model, tmp_path)
    assert session.streams == ("T1", "T2", "T3")
    for call, now, ahead in calls(coming, 10, targets):
        found = answered(session.step(call), len(targets))
        model.update(now)
        assert distance(found, predicted(model, ahead, targets)) <= CLOSE


def test_rows_that_were_left_out_are_walked_as_the_estimator_walks_them(covered, coming, tmp_path):
    """The calendar of the rows that did not come is known, their columns are not."""
    model = copy.deepcopy(covered)
    session = restored(model, tmp_path)
    rows = coming[coming.unique_id == "T1"].iloc[[0, 1, 5, 6]]
    for row in rows.itertuples():
        out = session.step({"T1": row_of(row)})["T1"]
    model.update(rows)
    unknown = model.make_future_frame(ids=["T1"]).assign(temp=np.nan, free=None)
    wanted = model.predict(futr_df=unknown, on_missing="mask", quantiles=LEVELS, ids=["T1"])
    assert distance(out.quantiles, wanted[[f"TXL_ql{level}" for level in LEVELS]]) <= CLOSE


def test_a_catch_up_with_what_was_known_at_each_row_equals_row_by_row(both, coming):
    targets, slow, fast = ("y", "flow"), both.live(), both.live()
    wanted = []
    static = {"size": 1.0, "region": "n"}
    for call, _, _ in calls(coming, 8, targets):
        wanted.append(slow.step({"T1": call["T1"] | {"static": static}})["T1"].quantiles)
    rows = coming[coming.unique_id == "T1"].iloc[:8]
    values = {name: rows[name].tolist() for name in (*targets, *ROLES)}
    ahead = [coming[coming.unique_id == "T1"].iloc[k + 1 : k + 4] for k in range(8)]
    futr = {name: [part[name].tolist() for part in ahead] for name in KNOWN}
    given = {"time": rows.ds.dt.tz_convert("UTC").to_list(), "values": values, "futr": futr, "static": static}
    found = fast.step({"T1": given})["T1"].forecasts
    assert found.shape == (8, 3, 2, 3)
    assert distance(found, np.stack(wanted)) <= CLOSE
    # Flat values ahead are those of the last row.
    flat = given | {"futr": {name: part[-1] for name, part in futr.items()}}
    again = both.live().step({"T1": flat})["T1"]
    assert distance(again.quantiles, wanted[-1]) <= CLOSE
    assert distance(again.forecasts[3], wanted[3]) > 1e-3  # of the others nothing is known ahead


def test_a_shorter_list_ahead_is_filled_with_what_is_not_known(covered, coming):
    row = next(coming.itertuples())
    given = row_of(row) | {"static": {"size": 1.0, "region": "n"}}
    some = covered.live().step({"a": given | {"futr": {"temp": [20.0]}}})["a"].quantiles
    same = covered.live().step({"a": given | {"futr": {"temp": [20.0, None, np.nan], "free": [None] * 3}}})["a"]
    np.testing.assert_array_equal(some, same.quantiles)


def test_arrays_of_codes_give_what_named_rows_give(both, coming):
    call = next(calls(coming, 1, ("y", "flow")))[0]
    static = {"T1": (1.0, "n"), "T2": (np.nan, "s"), "T3": (2.0, None)}
    named = {
        name: row | {"static": dict(zip(("size", "region"), static[name], strict=True))} for name, row in call.items()
    }
    wanted = both.live().step(named)
    words = both._roles.vocabulary

    def code(column, word):
        return words[column].index(word) + 1 if word in words[column] else 0

    values = [
        [v["y"], v["flow"], v["load"], code("mode", v["mode"]), v["temp"], code("free", v["free"])]
        for v in (row["values"] for row in call.values())
    ]
    futr = [
        [[temp, code("free", free)] for temp, free in zip(row["futr"]["temp"], row["futr"]["free"], strict=True)]
        for row in call.values()
    ]
    rows = [[size, code("region", region)] for size, region in static.values()]
    times = np.array([pd.Timestamp(row["time"]).value for row in call.values()])
    out = both.live().step_many(list(call), values, times, futr=np.array(futr), static=np.array(rows))
    assert out.quantiles.shape == (3, 3, 2, 3)
    for name, found in zip(call, out.quantiles, strict=True):
        np.testing.assert_array_equal(found, wanted[name].quantiles)


def test_a_session_warmed_with_history_knows_what_a_restored_one_knows(both, history, static, coming, tmp_path):
    known = restored(both, tmp_path)
    warm = both.live()
    warm.warm(history.assign(mode=history["mode"].astype(object)).merge(static))
    assert warm.streams == known.streams
    for call, _, _ in calls(coming, 2, ("y", "flow")):
        left, right = warm.step(call), known.step(call)
        for name in call:
            assert distance(left[name].quantiles, right[name].quantiles) <= CLOSE


# ------------------------------------------------------------------------------------------------------- the protocol


@pytest.mark.slow  # the file keeps them, and gives the numbers of the twin
@pytest.mark.parametrize("promise", [str(check) for check in check_session(LiveSession, protocol="streams")])
def test_the_twin_keeps_every_promise_of_the_protocol(both, promise):
    {str(check): check for check in check_session(both.live, protocol="streams")}[promise]()


def test_a_compact_snapshot_brings_columns_and_what_is_static_back(both, coming, tmp_path):
    here = both.live()
    static = {"size": 1.0, "region": "n"}
    steps = [{"T1": call["T1"] | {"static": static}} for call, _, _ in calls(coming, 12, ("y", "flow"))]
    for call in steps[:10]:
        here.step(call)
    here.snapshot(tmp_path / "small.txl", compact=True)
    there = both.live()
    there.restore(tmp_path / "small.txl")
    for call in steps[10:]:
        call = {"T1": {key: value for key, value in call["T1"].items() if key != "static"}}
        left, right = here.step(call)["T1"], there.step(call)["T1"]
        assert distance(right.quantiles, left.quantiles) <= CLOSE


def test_streams_of_several_targets_are_counted_closed_and_copied_whole(both, coming):
    session = both.live()
    static = {"size": 1.0, "region": "n"}
    for call, _, _ in calls(coming, 2, ("y", "flow")):
        session.step({name: row | {"static": static} for name, row in call.items()})
    assert session.metrics()["streams"] == 3
    assert session.state_nbytes == 2 * both._model.state_nbytes() - 2 * last_nbytes(both)
    session.copy("T1", "fork")
    assert session.streams == ("T1", "T2", "T3", "fork")
    with pytest.raises(StateError, match="there is a stream 'fork' already"):
        session.copy("T2", "fork")
    session.close("T2")
    with pytest.raises(StateError, match=r"there is no stream 'T2' \(3 in all\)"):
        session.reset("T2")
    assert session.streams == ("T1", "T3", "fork")


def last_nbytes(model):
    return {spec.name: spec.nbytes for spec in model._model.state_specs()}["last"]


def test_new_weights_walk_the_rows_that_were_kept_with_their_columns(both, coming):
    session, other = both.live(), copy.deepcopy(both)
    static = {"size": 1.0, "region": "n"}
    steps = [{"T1": call["T1"] | {"static": static}} for call, _, _ in calls(coming, 11, ("y", "flow"))]
    for call in steps[:10]:
        session.step(call)
    twin = other.live()  # the same weights
    report = session.swap((twin._fleet.manner.steps._model, twin.contract.document))
    assert (report["streams"], report["rows"]) == (1, 20)
    last = {"T1": {key: value for key, value in steps[10]["T1"].items() if key != "static"}}
    found = session.step(last)["T1"].quantiles
    session.roll_back()
    assert np.isfinite(found).all()


def test_a_model_with_other_categories_is_no_new_weights(both, coming):
    session = both.live()
    document = copy.deepcopy(session.contract.document)
    (futr,) = [entry for entry in document["inputs"] if entry["name"] == "futr"]
    futr["columns"][1]["categories"] = ["maybe", "yes"]
    with pytest.raises(StateError, match="other columns beside the target, other categories or another horizon"):
        session.swap((both._model, document))


def test_verify_gives_the_function_what_stands_beside_the_channels(covered):
    import torch

    from txl_ts.embeddings import beside_of

    def by_torch(x, state, more):
        rows = torch.from_numpy(x)
        given = beside_of({name: torch.from_numpy(array) for name, array in more.items()}, rows)
        with torch.inference_mode():
            y, after = covered._model(rows, {n: torch.from_numpy(a) for n, a in state.items()}, beside=given)
        return y, {name: after[name] for name in state}

    assert covered.live().verify(by_torch) <= CLOSE


# ------------------------------------------------------------------------------------------------------------- errors

GOOD = {"y": 1.0, "load": 90.0, "mode": "on", "temp": 12.0, "free": "no"}
STATIC = {"size": 1.0, "region": "n"}
BAD_ROWS = {
    "a bare number": (3.0, ColumnError, r"got a bare number, but the model has the channels and columns \['y', 'load'"),
    "a column that is lacking": (
        {"values": {k: v for k, v in GOOD.items() if k != "temp"}},
        ColumnError,
        r"no value for channel or column 'temp' \(1 lacking\)\. Give NaN",
    ),
    "a column that nobody knows": (
        {"values": GOOD | {"tmp": 3.0}},
        ColumnError,
        "unknown channel or column 'tmp', did you mean 'temp'",
    ),
    "a text for an amount": ({"values": GOOD | {"load": "90"}}, ColumnError, "column 'load' holds str"),
    "a fraction for a category": (
        {"values": GOOD | {"free": 0.5}},
        ColumnError,
        r"column 'free' holds 0.5 of type float, expected one of its categories, such as \['no', 'yes'\]",
    ),
    "an unknown column ahead": (
        {"values": GOOD, "futr": {"load": [1.0]}},
        ColumnError,
        r"'futr' holds an unknown column 'load'\. The model has \['temp', 'free'\]",
    ),
    "too much ahead": (
        {"values": GOOD, "futr": {"temp": [1.0, 2.0, 3.0, 4.0]}},
        ShapeError,
        "'futr' holds 4 values of 'temp', but the model forecasts 3 steps. Give the next 3 at most",
    ),
    "as many lists ahead as there are no rows": (
        {"values": GOOD, "futr": {"temp": [[1.0], [2.0]]}},
        ShapeError,
        "'futr' holds 2 entries of 'temp' for 1 rows",
    ),
    "a list ahead": ({"values": GOOD, "futr": [20.0]}, ParameterError, "'futr' is of type list, expected a mapping"),
    "half of what is static": ({"values": GOOD, "static": {"size": 3.0}}, ColumnError, "'static' lacks 'region'"),
    "an unknown key": (
        {"values": GOOD, "ahead": {}},
        ParameterError,
        r"unknown keys \['ahead'\], expected 'time' and 'values' and 'futr' and 'static'",
    ),
}


@pytest.mark.parametrize(("row", "error", "told"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_what_cannot_be_read_is_refused_by_name_and_changes_nothing(covered, row, error, told):
    session, now = covered.live(), 1_712_000_000 // 3600 * 3600 * 10**9
    good = {"time": now, "values": GOOD, "static": STATIC}
    session.step({"a": good})
    bad = {"time": now + 3600 * 10**9, "static": STATIC} | row if isinstance(row, dict) else row
    with pytest.raises(error, match=told):
        session.step({"new": good, "a": bad})
    assert session.streams == ("a",)


def test_the_calendar_needs_a_time_and_counts_on_from_it(covered):
    told, silent = covered.live(), covered.live()
    row = {"values": GOOD, "static": STATIC}
    for rows in (row, {"values": {name: [one, one] for name, one in GOOD.items()}, "static": STATIC}):
        with pytest.raises(StampError, match="stream 'a': no time was given, and the model reads the calendar"):
            told.step({"timed": row | {"time": 0}, "a": rows})
    for session in (told, silent):
        session.step({"a": row | {"time": 0}})
    left = told.step({"a": {"values": GOOD | {"y": 2.0}, "time": 3600 * 10**9}})["a"]
    right = silent.step({"a": {"values": GOOD | {"y": 2.0}}})["a"]
    np.testing.assert_array_equal(left.quantiles, right.quantiles)


def test_a_stream_that_begins_without_what_is_static_is_refused(covered):
    session = covered.live()
    given = {"time": 0, "values": GOOD}
    with pytest.raises(ColumnError, match=r"stream 'a' begins, and its static columns \['size', 'region'\] are not"):
        session.step({"a": given})
    with pytest.raises(ColumnError, match="stream 'a' begins"):  # several rows go another way
        session.step({"a": {"time": [0, 3600 * 10**9], "values": {name: [v, v] for name, v in GOOD.items()}}})
    session.step({"a": given | {"static": STATIC}})
    session.reset("a")
    session.step({"a": given})  # what is static is no memory
    session.step({"a": {"time": 10**9 * 3600 * 1000, "values": GOOD}})  # nor does a long gap forget it


def test_a_category_that_was_not_fitted_counts_as_not_known(covered):
    def last(word):
        columns = GOOD | {"y": 1.5, "free": word, "mode": word}
        values = {name: [GOOD[name], one] for name, one in columns.items()}
        row = {"time": [0, 3600 * 10**9], "values": values, "static": STATIC}
        return covered.live().step({"a": row})["a"].quantiles

    found = [last(word) for word in ("never", None, 7, np.nan)]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
    assert distance(last("yes"), found[0]) > 1e-4


def test_arrays_that_hold_no_codes_are_refused(covered):
    session = covered.live()
    values, static = np.array([[1.0, 90.0, 1.0, 12.0, 1.0]]), np.array([[1.0, 1.0]])
    with pytest.raises(ColumnError, match=r"column 'free' holds 3.0, expected codes of its 2 categories: 1 for 'no'"):
        session.step_many(["a"], values + np.array([0, 0, 0, 0, 2.0]), [0], static=static)
    with pytest.raises(ShapeError, match=r"futr has shape \(1, 2\) and dtype float64, expected numbers of shape"):
        session.step_many(["a"], values, [0], futr=np.zeros((1, 2)), static=static)
    with pytest.raises(ShapeError, match=r"values has shape \(1, 1\), expected \(1, 5\): one row of the channels and"):
        session.step_many(["a"], values[:, :1], [0], static=static)


def test_a_model_whose_steps_have_no_length_and_that_reads_the_calendar_is_refused(tiny, tmp_path):
    months = pd.date_range("2000-01-01", periods=120, freq="MS")
    df = pd.DataFrame({"unique_id": "a", "ds": months, "y": np.sin(np.arange(120))})
    model = TXLForecaster(**{**tiny, "freq": "MS", "max_epochs": 0}, calendar=["month"]).fit(df)
    for call in (model.live, lambda: model.export_state(tmp_path / "s.txl")):
        with pytest.raises(ExportError, match=r"no fixed length \(freq='MS'\)"):
            call()
    assert not list(tmp_path.iterdir())


def test_days_without_a_zone_have_a_length(tiny, tmp_path):
    days = pd.date_range("2024-01-01", periods=150, freq="D")
    df = pd.DataFrame({"unique_id": "a", "ds": days, "y": np.sin(np.arange(150) * 2 * np.pi / 7)})
    model = TXLForecaster(**{**tiny, "freq": "1D"}, calendar=["weekday"]).fit(df.iloc[:140])
    session = restored(model, tmp_path)
    for row in df.iloc[140:144].itertuples():
        out = session.step({"a": {"time": row.ds.to_pydatetime(), "values": {"y": row.y}}})["a"]
    model.update(df.iloc[140:144])
    wanted = model.predict(quantiles=LEVELS)
    assert distance(out.quantiles, wanted[[f"TXL_ql{level}" for level in LEVELS]]) <= CLOSE


def test_the_rows_that_a_precision_is_measured_on_are_laid_out_as_streams_bring_them(covered, history):
    from txl_ts.estimators.files import newest_rows

    panel = covered._read_more(history.drop(columns="flow"), continues=False)
    feed = covered.live().contract.layout.feed(newest_rows(panel, h=3))
    assert list(feed) == ["x", "hist", "futr", "static", "futr_ahead"]
    n = feed["x"].shape[1]
    longest = history[history.unique_id == "T3"]
    np.testing.assert_array_equal(feed["x"][0, :, 0], longest.y.astype(np.float32).tail(n))
    np.testing.assert_array_equal(feed["hist"][0, :, 0], longest.load.astype(np.float32).tail(n))
    for k in range(3):
        np.testing.assert_array_equal(feed["futr_ahead"][0, : n - 3, k], feed["futr"][0, 1 + k : n - 2 + k])
    assert np.isnan(feed["futr_ahead"][0, -1, :, 0]).all()  # of the rows after the last no temperature is known,
    assert np.isfinite(feed["futr_ahead"][0, -1, :, 2:]).all()  # and the calendar is
    np.testing.assert_array_equal(feed["static"][0], np.array([2.0, 0.0], np.float32))


# -------------------------------------------------------------------------------------------------------- the contract


def test_the_contract_names_the_columns_of_each_role(both):
    document = both.live().contract.document
    assert document["schema"] == "1.1.0"
    inputs = {entry["name"]: entry for entry in document["inputs"]}
    assert list(inputs) == ["x", "start", "hist", "futr", "futr_ahead", "static"]
    assert inputs["hist"]["columns"] == [
        {"name": "load", "kind": "amount"},
        {"name": "mode", "kind": "category", "categories": ["off", "on"]},
    ]
    assert [column["kind"] for column in inputs["futr"]["columns"]] == ["amount", "category", *["calendar"] * 10]
    assert inputs["futr_ahead"]["dims"] == ["batch", "time", 3, 12]
    assert document["calendar"][:2] == ["hour.1.sin", "hour.1.cos"]
    assert (document["channels"], document["targets"]) == ("independent", ["y", "flow"])
    assert "past.09.last" not in [state["in"] for state in document["states"]]


def test_a_model_of_the_target_alone_has_the_contract_that_it_had(fitted):
    document = fitted.live().contract.document
    assert document["schema"] == "1.0.0"
    assert [entry["name"] for entry in document["inputs"]] == ["x", "start"]
    assert document["calendar"] == []
    assert {"channels", "targets"}.isdisjoint(document)


def futr_of(document):
    return next(entry for entry in document["inputs"] if entry["name"] == "futr")


BAD_CONTRACTS = {
    "a kind that is not known": (lambda d: futr_of(d)["columns"][0].update(kind="event"), "kind='event'"),
    "a calendar that is not known": (lambda d: futr_of(d)["columns"][-1].update(name="moon.1.sin"), "kind='calendar'"),
    "an amount behind the calendar": (
        lambda d: futr_of(d)["columns"].append({"name": "late", "kind": "amount"}),
        "kind='amount'",
    ),
    "sizes that are not those of the columns": (lambda d: futr_of(d)["columns"].pop(), "stands beside 'futr' of dims"),
    "a column with the name of a target": (
        lambda d: futr_of(d)["columns"][0].update(name="flow"),
        r"stands beside the columns .*distinct names",
    ),
    "a category that is no word": (
        lambda d: futr_of(d)["columns"][1].update(categories=["no", 0.5]),
        "categories=",
    ),
    "targets that are no names": (lambda d: d.update(targets=[1]), r"targets=\[1\]"),
    "a calendar without steps": (lambda d: d["time"].update(step_ns=None), "its step has no fixed length"),
    "an input that is not known": (
        lambda d: d["inputs"].append({"name": "event", "dims": []}),
        "has the inputs",
    ),
}


@pytest.mark.parametrize(("edit", "told"), BAD_CONTRACTS.values(), ids=BAD_CONTRACTS)
def test_a_contract_that_contradicts_itself_is_refused(both, edit, told):
    document = copy.deepcopy(both.live().contract.document)
    edit(document)
    with pytest.raises(FileFormatError, match=told):
        read_contract(json.dumps(document), where="m.onnx")


# ----------------------------------------------------------------------------------------------------------- the file


def test_the_graph_was_measured_against_torch_before_it_was_kept(exported):
    for path in (exported, exported.with_suffix(".step.onnx")):
        parity = StreamSession(path).contract.document["parity"]
        assert parity["max_relative"] <= CLOSE
    assert sorted(path.name for path in exported.parent.iterdir()) == [
        "both.contract.json", "both.onnx", "both.step.onnx", "both.txl",
    ]  # fmt: skip


@pytest.mark.parametrize("promise", [str(check) for check in check_session(LiveSession, protocol="streams")])
def test_the_file_keeps_every_promise_of_the_protocol(exported, promise):
    {str(check): check for check in check_session(lambda: StreamSession(exported), protocol="streams")}[promise]()


@pytest.mark.parametrize("n_streams", [1, 3, 64])
def test_the_file_gives_the_numbers_of_the_twin(both, exported, coming, n_streams):
    """One call of one row, of several, and a catch-up; with gaps, in company of any size."""
    twin, session = both.live(), StreamSession(exported)
    names, targets = [f"s{i}" for i in range(n_streams)], ("y", "flow")
    rng = np.random.default_rng(0)
    for turn, (call, _, _) in enumerate(calls(coming, 4, targets)):
        row = call["T1"]
        given = {}
        for name in names:
            values = row["values"] | {"y": None if rng.random() < 0.2 else float(rng.normal())}
            given[name] = row | {"values": values, "static": {"size": float(len(name)), "region": "s"}}
        left, right = session.step(given), twin.step(given)
        for name in names:
            assert distance(left[name].quantiles, right[name].quantiles) <= CLOSE, turn
    rows = coming[coming.unique_id == "T1"].iloc[4:12]
    many = {
        "time": rows.ds.dt.tz_convert("UTC").to_list(),
        "values": {name: rows[name].tolist() for name in (*targets, *ROLES)},
    }
    left, right = (one.step(dict.fromkeys(names[:3], many)) for one in (session, twin))
    assert distance(left["s0"].forecasts, right["s0"].forecasts) <= CLOSE


def test_the_files_memories_go_on_in_the_file(both, exported, coming):
    model, session = copy.deepcopy(both), StreamSession(exported)
    session.restore(exported.with_suffix(".txl"))
    for call, now, ahead in calls(coming, 3, ("y", "flow")):
        found = answered(session.step(call), 2)
        model.update(now)
        assert distance(found, predicted(model, ahead, ("y", "flow"))) <= CLOSE


def test_lanes_of_the_file_do_not_know_each_other(exported):
    onnxruntime = pytest.importorskip("onnxruntime")
    contract = StreamSession(exported).contract
    session = onnxruntime.InferenceSession(str(exported), providers=["CPUExecutionProvider"])
    rng, n = np.random.default_rng(0), 4
    rows = rng.normal(size=(n, 20, contract.layout.width)).astype(np.float32)

    def run(rows):
        feed = contract.layout.feed(rows) | {"start": np.ones((n, 1), np.int32)}
        feed |= {
            name: np.zeros((n, *spec.shape), spec.dtype)
            for name, spec in zip(contract.inputs, contract.specs, strict=True)
        }
        return session.run(None, feed)

    calm = run(rows)
    for value in (np.nan, np.inf, 1e30, -1e35):
        wild = rows.copy()
        wild[1, 5:] = value
        for a, b in zip(run(wild), calm, strict=True):
            np.testing.assert_array_equal(np.delete(a, 1, axis=0), np.delete(b, 1, axis=0))
    for array in run(np.full_like(rows, np.inf))[1:]:
        assert np.isfinite(array).all()


# ----------------------------------------------------------------------------------------------------------- real rows


@pytest.fixture(scope="module")
def victoria(shared_data):
    """Half-hourly load of Victoria with temperature and holidays: eight weeks up to and over a clock change."""
    path = shared_data / "vic_electricity" / "vic_electricity.csv"
    if not path.is_file():
        pytest.skip(f"there is no {path}")
    raw = pd.read_csv(path)
    time = pd.to_datetime(raw["Time"]).dt.tz_convert(ZONE)
    df = pd.DataFrame({"ds": time, "y": raw["Demand"], "temp": raw["Temperature"], "free": raw["Holiday"].astype(bool)})
    end = int(np.flatnonzero(df.ds >= pd.Timestamp("2012-10-07 12:00", tz=ZONE))[0])
    return df.iloc[end - 8 * 7 * 48 : end].assign(unique_id="vic").reset_index(drop=True)


def test_victorias_load_is_stepped_with_tomorrows_temperature(victoria, tmp_path):
    """Fit, export, restore what was fitted, and step the day on which the clock goes forward; beside the estimator."""
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    sizes = {"h": 4, "freq": "30min", "patch_len": 12, "mem_len": 6, "lookback": 48, "d_model": 8, "n_layers": 1}
    model = TXLForecaster(
        **sizes, n_heads=2, quantiles=tuple(LEVELS), max_epochs=1, segment_len=8, calendar=["hour", "weekday"]
    )
    n = 30
    past, coming = victoria.iloc[: -n - 4], victoria.iloc[-n - 4 :]
    model.fit(past, futr_cols=KNOWN, cat_cols=["free"], val_size=96)
    model.export_onnx(tmp_path / "vic.onnx")
    model.export_state(tmp_path / "vic.txl")
    session = StreamSession(tmp_path / "vic.onnx")
    session.restore(tmp_path / "vic.txl")
    for k in range(n):
        row, ahead = coming.iloc[k], coming.iloc[k + 1 : k + 5]
        given = {"time": row.ds.to_pydatetime(), "values": {"y": row.y, "temp": row.temp, "free": row.free}}
        futr = {name: ahead[name].tolist() for name in KNOWN}
        found = session.step({"vic": given | {"futr": futr}})["vic"]
        model.update(coming.iloc[[k]])
        wanted = model.predict(futr_df=ahead[["unique_id", "ds", *KNOWN]], quantiles=LEVELS)
        assert distance(found.quantiles, wanted[[f"TXL_ql{level}" for level in LEVELS]]) <= CLOSE
        assert list(found.times[1:]) == list(wanted.ds.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy())
    assert found.status == "ok"
    hotter = {name: [one + 15 if name == "temp" else one for one in column] for name, column in futr.items()}
    fork = StreamSession(tmp_path / "vic.onnx")
    fork.restore(tmp_path / "vic.txl")
    for k in range(n):
        row = coming.iloc[k]
        given = {"time": row.ds.to_pydatetime(), "values": {"y": row.y, "temp": row.temp, "free": row.free}}
        told = fork.step({"vic": given | {"futr": hotter if k == n - 1 else {}}})["vic"].quantiles
    assert distance(told, found.quantiles) > 1e-4  # what is known ahead counts
