"""The bench of uneven time: what it asks, and what the views know, by hand and on files that stand in."""

import numpy as np
import pandas as pd
import pytest

from txl_ts.bench import run_bench, uneven
from txl_ts.errors import FrameError, ParameterError

TINY = {**uneven._SIZES, "d_model": 8, "n_layers": 1, "n_heads": 2, "mem_len": 3, "max_epochs": 0, "lookback": 2}


def readings(**other):
    rows = pd.DataFrame(
        {
            "unique_id": ["a/HR"] * 4 + ["b/HR"] * 5,
            "hour": [0.5, 1.0, 1.25, 4.0, 0.0, 2.5, 3.0, 3.5, 9.0],
            "y": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
        }
    )
    given = {
        "name": "made",
        "rows": rows,
        "fitted": frozenset(["a/HR"]),
        "judged": frozenset(["b/HR"]),
        "judged_from": 2.0,
        "horizon": 2,
        "every": 1,
        "h": 2,
        "val_size": 1,
    }
    return uneven.Readings(**given | other)


def test_questions_are_the_readings_of_the_next_hours_after_whole_hours():
    asked = uneven.questions(readings())
    found = sorted(zip(asked.hour, asked.last, asked.step, asked.ahead, asked.y, strict=True))
    # At hour 2 the reading of hour 0 is known, and those of 2.5 and 3 are the next two within two hours.
    assert found == [(2, 0, 1, 0.5, 6), (2, 0, 2, 1.0, 7), (3, 2, 1, 0.5, 8), (7, 3, 1, 2.0, 9), (8, 3, 1, 1.0, 9)]
    assert uneven.last_values(readings(), asked).tolist() == [[5, 7, 8, 8, 5][i] for i in (0, 1, 2, 3, 4)]
    np.testing.assert_allclose(asked.unit, np.std([1, 2, 3, 4], ddof=1))


def test_the_reading_nearest_to_a_day_before_is_taken_among_those_that_are_known():
    hours = [0.0, 5.0, 23.0, 25.0, 28.0]
    rows = pd.DataFrame({"unique_id": "b/HR", "hour": hours, "y": [10.0, 20.0, 30.0, 40.0, 50.0]})
    rows = pd.concat([rows, rows.assign(unique_id="a/HR")])
    given = readings(rows=rows, judged_from=24.0, horizon=6, h=2)
    asked = uneven.questions(given)
    said = dict(zip(zip(asked.hour, asked.y, strict=True), uneven.seasonal_values(given, asked).tolist(), strict=True))
    assert said[24.0, 40.0] == 10  # hour 25 − 24 lies next to hour 0
    assert said[24.0, 50.0] == 20  # hour 28 − 24 lies next to hour 5


def test_an_hour_holds_its_last_reading_and_is_filled_forward_or_left_open():
    rows = readings().rows
    filled = uneven.by_the_hour(rows, filled=True)
    assert filled["y"][filled["unique_id"] == "b/HR"].tolist() == [5, 5, 5, 7, 8, 8, 8, 8, 8, 9]
    holes = uneven.by_the_hour(rows, filled=False)
    assert holes["y"][holes["unique_id"] == "a/HR"].fillna(-1).tolist() == [2, 3, -1, 4]


@pytest.fixture
def made(tmp_path):
    """Files with the columns of the real ones: eight patients."""
    folder = tmp_path / "physionet2012" / "set-a"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for patient in range(8):
        minutes = np.unique(np.cumsum(rng.choice([7, 30, 60, 120], 40)))
        lines = ["Time,Parameter,Value", f"00:00,RecordID,{patient}", "00:00,HR,-1"]
        for minute in minutes:
            clock = f"{minute // 60:02}:{minute % 60:02}"
            lines += [f"{clock},HR,{80 + rng.normal():.1f}", f"{clock},NIMAP,{70 + rng.normal():.1f}"]
        (folder / f"{patient}.txt").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def test_every_view_answers_every_question(made):
    cases = [
        uneven.Case(name=f"TXL, {view}", set="vitals", view=view, params=TINY)
        for view in (uneven.REAL_TIME, uneven.ROWS, uneven.FILLED, uneven.HOLES)
    ]
    table = run_bench("uneven", made, sets=("vitals",), variants=cases)
    assert [row["model"] for row in table["rows"]][2:] == [case.name for case in cases]
    assert all(0 < row["test_mae"] < 3 for row in table["rows"])
    assert len(table["notes"]) == 4


def test_missing_data_is_named(tmp_path):
    with pytest.raises(FrameError, match="holds no records"):
        run_bench("uneven", tmp_path, sets=("vitals",))
    with pytest.raises(FrameError, match="holds no air_quality"):
        run_bench("uneven", tmp_path, sets=("air",))
    with pytest.raises(ParameterError, match="must be of"):
        run_bench("uneven", tmp_path, sets=("water",))
