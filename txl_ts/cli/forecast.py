"""``txl-ts fit`` and ``txl-ts predict``: a table becomes a model file, and a model file a table of forecasts."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from txl_ts.cli.tables import check_suffix, print_table, read_table, write_table
from txl_ts.errors import ParameterError

if TYPE_CHECKING:
    from txl_ts.estimators.forecaster import TXLForecaster


@dataclass(frozen=True)
class Columns:
    """Where a table keeps what is read.

    Attributes
    ----------
    id_col : str or None
        None: the table is one series.
    time_col, target_col : str
    time_format : str
        Of stamps in csv; empty for ISO 8601 and whole numbers.
    """

    id_col: str | None
    time_col: str
    target_col: str
    time_format: str = ""


def run_fit(data: Path, out: Path, *, columns: Columns, params: dict[str, Any], val_size: int | None) -> None:
    """Fit a forecaster on a table and save it.

    Parameters
    ----------
    data : Path
        csv or parquet.
    out : Path
        The model file.
    columns : Columns
    params : dict
        Parameters of the forecaster.
    val_size : int or None
    """
    from txl_ts.estimators.forecaster import TXLForecaster

    check_suffix("DATA", data)
    check_folder(out)
    check_names(params, known=list(inspect.signature(TXLForecaster.__init__).parameters)[1:])
    model = TXLForecaster(**params)
    named: Any = {"id_col": columns.id_col, "time_col": columns.time_col, "target_col": columns.target_col}
    table = read_table(data, **named, time_format=columns.time_format)
    print(f"{len(table):,} rows from {data}")
    model.fit(table, **named, val_size=val_size)
    model.save(out)
    if not model.verbose:
        print("\n".join(model._report()))
    print(f"Written: {out} ({out.stat().st_size / 1024:,.0f} KiB), fitted in {model.fit_seconds_:.0f} s")


def run_predict(
    model: Path,
    data: Path | None,
    out: Path | None,
    *,
    h: int | None,
    level: Sequence[float] | None,
    quantiles: Sequence[float] | None,
    ids: Sequence[str] | None,
    start: str | None,
    time_format: str,
) -> None:
    """Forecast with a saved model, after the rows that it knows or after those of a table.

    Parameters
    ----------
    model : Path
        What ``txl-ts fit`` or ``TXLForecaster.save`` wrote.
    data : Path or None
        Rows to walk first; the file of the model stays as it is.
    out : Path or None
        csv or parquet; None prints csv.
    h, level, quantiles, ids, start
        As in ``TXLForecaster.predict``.
    time_format : str
    """
    from txl_ts.estimators.forecaster import TXLForecaster

    if out is not None:
        check_suffix("--out", out)
        check_folder(out)
    forecaster = TXLForecaster.load(model)
    _check_columns(forecaster, walks=data is not None)
    style, known = forecaster._style, forecaster._fleet.ids
    are_text = not known or isinstance(known[0], str)
    rows = None
    if data is not None:
        rows = read_table(
            data,
            id_col=style.id_col,
            time_col=style.time_col,
            target_col=style.target_col,
            ids_are_text=are_text,
            time_format=time_format,
        )
    names: list[str | int] | None = None if ids is None else list(ids)
    if ids is not None and not are_text:
        names = [int(name) if name.lstrip("-").isdigit() else name for name in ids]
    forecast: Any = forecaster.predict(h, df=rows, start=start, level=level, quantiles=quantiles, ids=names)  # type: ignore[arg-type]
    table = forecast if isinstance(forecast, pl.DataFrame) else _polars(forecast)
    if out is None:
        print_table(table)
        return
    write_table(table, out)
    print(f"Written: {out} ({len(table):,} rows)")


def numbers(option: str, text: str | None) -> list[float] | None:
    """Read ``"80,90"``.

    Raises
    ------
    ParameterError
        If it is anything else.
    """
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ParameterError(f"{option} {text!r} must be numbers with commas between them, such as 80,90.") from None


def settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Read ``["d_model=32", "loss=owa"]``: numbers, true, false, null and lists as in JSON, anything else as text.

    Raises
    ------
    ParameterError
        If a pair has no ``=``.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ParameterError(f"--set {pair!r} must be NAME=VALUE, such as --set d_model=32.")
        try:
            found[name.strip()] = json.loads(text)
        except ValueError:
            found[name.strip()] = text
    return found


def _polars(frame: Any) -> pl.DataFrame:
    import narwhals.stable.v2 as nw

    table = nw.from_native(frame, eager_only=True)
    return pl.DataFrame({name: pl.Series(name, table[name].to_list()) for name in table.columns})


def _check_columns(forecaster: TXLForecaster, *, walks: bool) -> None:
    """Raise ParameterError for a model that needs more columns than the command reads."""
    roles = forecaster._roles
    needed = [*roles.futr, *(roles.hist + roles.static + forecaster._targets if walks else ())]
    if needed:
        raise ParameterError(
            f"this model needs the columns {needed[:5]}, and txl-ts predict reads id, time and one target. Forecast in "
            "Python: TXLForecaster.load(path).predict(df=…, futr_df=…)."
        )


def check_folder(path: Path) -> None:
    """Raise ParameterError if the folder of a file to write is not there."""
    if not path.parent.is_dir():
        raise ParameterError(f"--out {str(path)!r}: there is no folder {str(path.parent)!r}. Make it, or name another.")


def check_names(params: dict[str, Any], *, known: Sequence[str], whose: str = "forecaster") -> None:
    """Raise ParameterError for a parameter that an estimator does not know."""
    import difflib

    for name in params:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ParameterError(f"--set {name}=…: the {whose} has no parameter {name!r}.{hint}")
