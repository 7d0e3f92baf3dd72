"""The tabular bench reads its files as they are, and lays its table out, here with made-up files of the same form."""

import numpy as np
import pytest

from txl_ts.bench import tabular, tabular_sets
from txl_ts.bench.check_estimator import CONTRADICTS_A_MEMORY, table
from txl_ts.bench.report import markdown
from txl_ts.errors import FrameError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small files in the form of the originals."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for name in ("occupancy", "uea_small", "cmapss"):
        (root / name).mkdir()
    head = '"date","Temperature","Humidity","Light","CO2","HumidityRatio","Occupancy"\n'
    for part in ("datatraining", "datatest", "datatest2"):
        rows = [
            f'"{i + 1}","2015-02-04 17:{i:02d}:00",20,30,{light},500,0.004,{int(light > 365)}'
            for i, light in enumerate(rng.integers(0, 800, 40))
        ]
        (root / "occupancy" / f"{part}.txt").write_text(head + "\n".join(rows) + "\n")
    for part in ("TRAIN", "TEST"):
        lines = [
            ":".join([*(",".join(f"{x:.3f}" for x in rng.normal(i % 2, 1, 5 + i % 3)) for _ in range(2)), "ab"[i % 2]])
            for i in range(8)
        ]
        text = "#remark\n@problemName Toy\n@classLabel true a b\n@data\n" + "\n".join(lines) + "\n"
        (root / "uea_small" / f"Toy_{part}.ts").write_text(text)
        units = np.repeat([1, 2, 3], [40, 35, 50])
        cycle = np.concatenate([np.arange(1, n + 1) for n in (40, 35, 50)])
        np.savetxt(root / "cmapss" / f"{part.lower()}_FD001.txt", np.c_[units, cycle, rng.normal(size=(125, 24))])
    np.savetxt(root / "cmapss" / "RUL_FD001.txt", [7, 130, 20])
    return root


def test_a_ragged_panel_is_padded_with_nan(folder):
    panel = tabular_sets.uea(folder, "Toy", "TRAIN")
    assert panel.X.shape == (8, 7, 2)
    assert panel.y.tolist() == list("abababab")
    assert [int(np.isfinite(rows[:, 0]).sum()) for rows in panel.X] == [5, 6, 7, 5, 6, 7, 5, 6]


def test_remaining_cycles_count_down_to_what_the_file_says(folder):
    train, test = tabular_sets.engines(folder, "train"), tabular_sets.engines(folder, "test")
    assert train.left[train.last].tolist() == [0, 0, 0]
    assert test.raw_left[test.last].tolist() == [7, 130, 20]
    assert test.left[test.last].tolist() == [7, 125, 20]
    assert train.take(np.array([2])).cycle.tolist() == list(range(1, 36))


def test_window_features_are_value_mean_deviation_slope_and_count(folder):
    cycles = tabular_sets.engines(folder, "train")
    found = tabular.windows(cycles)[40 + 33]  # the 34th row of the second engine: a full window
    rows = cycles.X[40 + 4 : 40 + 34]
    slope = np.polyfit(np.arange(30), rows, 1)[0]
    expected = np.concatenate([rows[-1], rows.mean(axis=0), rows.std(axis=0), slope, [30]])
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert tabular.windows(cycles)[40][-1] == 1  # the second engine begins anew


def test_the_table_has_a_row_per_contender_and_part(folder, monkeypatch):
    tiny = {"max_epochs": 1, "d_model": 8, "n_heads": 2}
    for name in ("OCCUPANCY_PARAMS", "PER_SERIES", "REMAINING_LIFE"):
        monkeypatch.setattr(tabular, name, tiny)
    found = tabular.run(folder, seeds=(0, 1), sets=("occupancy", "Toy", "cmapss"))
    names = [(row["set"], row["model"]) for row in found["rows"]]
    assert len(set(names)) == len(names) == 2 * 5 + 4 + 2 * 5
    rule = next(row for row in found["rows"] if row["model"].startswith("rule"))
    assert (rule["value"], rule["n_seeds"]) == (1.0, 1)
    ours = [row for row in found["rows"] if row["model"] == "TXLRegressor"]
    assert [row["n_seeds"] for row in ours] == [2, 2]
    assert "| TXLClassifier | accuracy |" in markdown(found)
    alone = tabular.run(folder, seeds=(0,), sets=("Toy",), variants=())
    assert [row["model"] for row in alone["rows"]] == ["majority", "1-NN, flattened", "random forest, flattened"]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FrameError, match=r"datatraining.txt is not there. Pass the folder that holds occupancy/"):
        tabular_sets.occupancy(tmp_path, "datatraining")


def test_the_report_of_checks_has_a_row_per_version_and_estimator():
    result = {"passed": 50, "skipped": [], "expected": list(CONTRADICTS_A_MEMORY), "failed": [], "seconds": 1.0}
    found = {
        version: {"version": version, "estimators": {"TXLClassifier": result, "TXLEncoder": result}}
        for version in ("1.9.1", "1.6.1")
    }
    rows = table(found)["rows"]
    assert [(row["sklearn"], row["estimator"], row["failed"]) for row in rows] == [
        ("1.6.1", "TXLClassifier", "none"),
        ("1.6.1", "TXLEncoder", "none"),
        ("1.9.1", "TXLClassifier", "none"),
        ("1.9.1", "TXLEncoder", "none"),
    ]
