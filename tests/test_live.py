"""The torch twin speaks the runtime's protocol and gives the estimator's numbers."""

import numpy as np
import pytest

from txl_ts.checks import check_session
from txl_ts.errors import StampError
from txl_ts.live import LiveSession
from txl_ts.runtime import StreamSession


@pytest.fixture
def session(forecaster, tmp_path):
    forecaster.export_state(tmp_path / "state.txl")
    live = forecaster.live()
    live.restore(tmp_path / "state.txl")
    return live


@pytest.mark.parametrize("promise", [str(check) for check in check_session(LiveSession, protocol="streams")])
def test_the_twin_keeps_every_promise_of_the_protocol(fitted, promise):
    checks = {str(check): check for check in check_session(fitted.live, protocol="streams")}
    checks[promise]()


def rows_after(make_rows, n_rows):
    """The next rows of the first series that ``fitted`` saw."""
    longer = make_rows(n_series=1, n_rows=100 + n_rows, seed=3)
    return longer.iloc[100:]


def test_rows_stepped_one_by_one_give_what_update_and_predict_give(session, forecaster, make_rows):
    assert isinstance(session, StreamSession)
    rows = rows_after(make_rows, 12)
    for _, row in rows.iterrows():
        result = session.step({"T1": {"time": row["ds"].to_pydatetime(), "values": {"y": row["y"]}}})["T1"]
    forecaster.update(rows)
    expected = forecaster.predict(ids=["T1"], quantiles=[0.1, 0.5, 0.8])
    wanted = expected[["TXL_ql0.1", "TXL_ql0.5", "TXL_ql0.8"]].to_numpy()
    # Another grouping of the same float32 sums.
    np.testing.assert_allclose(result.quantiles, wanted, rtol=1e-5, atol=1e-5)


def test_a_snapshot_of_the_twin_continues_bit_for_bit(session, forecaster, make_rows, tmp_path):
    rows = rows_after(make_rows, 6)
    steps = [{"T1": {"time": r["ds"].to_pydatetime(), "values": {"y": r["y"]}}} for _, r in rows.iterrows()]
    for step in steps[:3]:
        session.step(step)
    session.snapshot(tmp_path / "now.txl")
    again = forecaster.live()
    again.restore(tmp_path / "now.txl")
    for step in steps[3:]:
        here, there = session.step(step)["T1"], again.step(step)["T1"]
        np.testing.assert_array_equal(here.quantiles, there.quantiles)


def test_a_late_row_is_refused_and_changes_nothing(session, make_rows):
    rows = rows_after(make_rows, 2)
    first, second = ({"T1": {"time": r["ds"].to_pydatetime(), "values": {"y": r["y"]}}} for _, r in rows.iterrows())
    session.step(first)
    with pytest.raises(StampError):
        session.step(first)
    assert np.isfinite(session.step(second)["T1"].quantiles).all()
