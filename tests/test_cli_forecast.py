"""``txl-ts fit`` and ``txl-ts predict`` give what the library gives, for csv and parquet."""

import errno
import io
import sys

import numpy as np
import polars as pl
import pytest

from txl_ts import TXLForecaster
from txl_ts.cli import main

pytest.importorskip("typer", reason="the command line needs the extra `cli`")

SIZES = {"patch_len": 4, "d_model": 8, "n_heads": 2, "lookback": 12, "mem_len": 3, "max_epochs": 0}
SET = [part for name, value in SIZES.items() for part in ("--set", f"{name}={value}")]


def call(*args: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(arg) for arg in args])
    return end.value.code or 0


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    rng = np.random.default_rng(0)
    stamps = pl.datetime_range(pl.datetime(2026, 1, 1), pl.datetime(2026, 1, 5, 23), "1h", eager=True)
    y = np.sin(np.arange(120) / 4) + rng.normal(0, 0.1, 120)
    parts = [pl.DataFrame({"shop": name, "at": stamps, "sold": y * k}) for k, name in enumerate(("007", "12"), 1)]
    return pl.concat(parts)


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    table.write_csv(folder / "sales.csv")
    table.write_parquet(folder / "sales.parquet")
    columns = ["--id-col", "shop", "--time-col", "at", "--target-col", "sold"]
    for kind in ("csv", "parquet"):
        assert call("fit", folder / f"sales.{kind}", *columns, "--out", folder / f"{kind}.txl", "--h", 3, *SET) == 0
    return folder


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_is_fitted_as_the_library_would(folder, table, kind):
    expected = TXLForecaster(h=3, **SIZES).fit(table, id_col="shop", time_col="at", target_col="sold").predict()
    got = TXLForecaster.load(folder / f"{kind}.txl").predict()
    assert got.columns == expected.columns
    assert got["shop"].to_list() == ["007"] * 3 + ["12"] * 3  # text, zeros kept
    np.testing.assert_allclose(got["TXL"], expected["TXL"], rtol=1e-5)  # csv is decimal


def test_fit_says_what_was_chosen_and_written(folder, capsys):
    out = folder / "again.txl"
    args = ["--id-col", "shop", "--time-col", "at", "--target-col", "sold", "--out", out, *SET]
    assert call("fit", folder / "sales.csv", *args) == 0
    captured = capsys.readouterr()
    assert "240 rows from" in captured.out
    assert "2 series, step 1h: patch 4" in captured.out
    assert f"Written: {out}" in captured.out
    assert captured.err == ""


def test_predict_prints_csv_of_the_forecasts(folder, capsys):
    assert call("predict", folder / "csv.txl", "--level", "80", "--ids", "007", "--h", 2) == 0
    got = pl.read_csv(io.StringIO(capsys.readouterr().out), schema_overrides={"shop": pl.String}, try_parse_dates=True)
    expected = TXLForecaster.load(folder / "csv.txl").predict(2, level=[80], ids=["007"])
    assert got.columns == expected.columns == ["shop", "at", "TXL", "TXL-lo-80", "TXL-hi-80"]
    assert got["at"].to_list() == expected["at"].to_list()
    np.testing.assert_allclose(got["TXL-hi-80"], expected["TXL-hi-80"], rtol=1e-6)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_predict_walks_the_rows_of_a_table_and_writes_a_table(folder, table, kind):
    part = table.filter(pl.col("at") < pl.datetime(2026, 1, 4))
    part.write_csv(folder / "part.csv")
    out = folder / f"forecast.{kind}"
    assert call("predict", folder / "csv.txl", "--data", folder / "part.csv", "--out", out) == 0
    got = pl.read_parquet(out) if kind == "parquet" else pl.read_csv(out, try_parse_dates=True)
    expected = TXLForecaster.load(folder / "csv.txl").predict(df=part)
    assert got["at"].to_list() == expected["at"].to_list()
    np.testing.assert_allclose(got["TXL"], expected["TXL"], rtol=1e-4)


def test_predict_goes_on_from_the_fitted_memories_when_asked(folder, table, capsys):
    news = table.with_columns(pl.col("at") + pl.duration(days=5)).filter(pl.col("at") < pl.datetime(2026, 1, 7))
    news.write_csv(folder / "news.csv")
    assert call("predict", folder / "csv.txl", "--data", folder / "news.csv", "--start", "fitted") == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("007,2026-01-07T00:00:00")


def test_stamps_in_another_writing_are_read_as_the_format_says(folder, tmp_path):
    path = tmp_path / "local.csv"
    rows = "\n".join(f"{1 + i // 24}.1.2026 {i % 24}.00,{i % 24}" for i in range(96))
    path.write_text(f"when,v\n{rows}\n")
    args = ["--no-id", "--time-col", "when", "--target-col", "v", "--out", tmp_path / "m.txl", *SET]
    assert call("fit", path, *args, "--time-format", "%d.%m.%Y %H.%M") == 0
    assert TXLForecaster.load(tmp_path / "m.txl").params_["freq"] == "1h"


MISTAKES = {
    "id column": (["--id-col", "store"], "has no column 'store'; it has ['shop', 'at', 'sold']. Name it with --id-col"),
    "time column": (["--time-col", "when"], "has no column 'when'"),
    "target column": (["--target-col", "price"], "has no column 'price'"),
    "parameter": (["--set", "d_modl=8"], "the forecaster has no parameter 'd_modl'. Did you mean 'd_model'?"),
    "setting": (["--set", "d_model"], "--set 'd_model' must be NAME=VALUE"),
    "quantiles": (["--quantiles", "a"], "--quantiles 'a' must be numbers with commas between them"),
    "folder": (["--out", "/no/such/folder/m.txl"], "there is no folder '/no/such/folder'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_message_that_names_it(folder, capsys, mistake):
    args, text = MISTAKES[mistake]
    columns = ["--id-col", "shop", "--time-col", "at", "--target-col", "sold"]
    assert call("fit", folder / "sales.csv", *columns, *args) == 2
    error = capsys.readouterr().err
    assert error.startswith("Error: ")
    assert text in error


def test_values_and_stamps_that_are_none_are_named_with_column_and_row(tmp_path, capsys):
    path = tmp_path / "bad.csv"
    path.write_text("unique_id,ds,y\na,2026-01-01,1\na,2026-01-02,NA\na,2026-01-03,lots\n")
    assert call("fit", path) == 2
    assert "target column 'y' of" in (text := capsys.readouterr().err)
    assert "holds 1 values that are no numbers (first at row 2: 'lots')" in text
    path.write_text("unique_id,ds,y\na,first of May,1\n")
    assert call("fit", path) == 2
    assert "time column 'ds' of" in (text := capsys.readouterr().err)
    assert "holds text that is no ISO stamp, such as 'first of May'" in text
    assert call("fit", path, "--time-format", "%d.%m %H") == 2
    assert "--time-format '%d.%m %H' cannot be used" in capsys.readouterr().err
    path.write_text("unique_id,ds,y\na,1.5.2026,1\na,May 2,2\n")
    assert call("fit", path, "--time-format", "%d.%m.%Y") == 2
    assert "in 1 rows (first at row 1: 'May 2')" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["fit", "predict", "fit-detector"])
def test_a_table_without_rows_is_named(command, folder, capsys, tmp_path):
    empty = tmp_path / "empty.csv"
    empty.write_text("shop,at,sold\n")
    columns = ["--id-col", "shop", "--time-col", "at"]
    args = {
        "fit": [empty, *columns, "--target-col", "sold", "--out", tmp_path / "out.txl"],
        "predict": [folder / "csv.txl", "--data", empty],
        "fit-detector": [empty, *columns, "--out", tmp_path / "out.txl"],
    }[command]
    assert call(command, *args) == 2
    assert "has the columns ['shop', 'at', 'sold'] and no rows" in capsys.readouterr().err


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("out", "reason"), [(FullDisk(), "No space left on device"), (None, "is closed")])
def test_forecasts_that_cannot_be_printed_are_one_message(out, reason, folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", out)
    assert call("predict", folder / "csv.txl") == 2
    assert f"{reason}. Make room, or name a file with --out." in capsys.readouterr().err


@pytest.mark.parametrize("name", ["graph.txt", "graph"])
def test_a_graph_is_not_written_under_another_suffix(name, folder, capsys, tmp_path):
    assert call("export", folder / "csv.txl", "--out", tmp_path / name) == 2
    assert "must end with .onnx: take" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_other_kinds_of_files_are_refused_by_their_suffix(folder, capsys, tmp_path):
    path = tmp_path / "sales.xlsx"
    path.write_text("")
    assert call("fit", path) == 2
    assert "must end with .csv or .parquet" in capsys.readouterr().err
    assert call("predict", folder / "csv.txl", "--out", tmp_path / "out.json") == 2
    assert "must end with .csv or .parquet" in capsys.readouterr().err


def test_a_model_with_more_columns_is_sent_to_python(folder, table, capsys, tmp_path):
    rows = table.with_columns(warm=pl.col("sold") * 2, left=-pl.col("sold"))
    names = {"id_col": "shop", "time_col": "at"}
    ahead = TXLForecaster(h=3, **SIZES).fit(rows.drop("left"), target_col="sold", futr_cols=["warm"], **names)
    several = TXLForecaster(h=3, **SIZES).fit(rows.drop("warm"), target_col=["sold", "left"], **names)
    for name, model in {"ahead": ahead, "several": several}.items():
        model.save(tmp_path / f"{name}.txl")
    for args, needed in (
        (["ahead.txl"], "'warm'"),
        (["several.txl", "--data", folder / "sales.csv"], "'sold', 'left'"),
    ):
        assert call("predict", tmp_path / args[0], *args[1:]) == 2
        assert f"Error: this model needs the columns [{needed}], and txl-ts predict" in capsys.readouterr().err
    assert call("predict", tmp_path / "several.txl") == 0
    assert "sold_TXL" in capsys.readouterr().out
