"""``txl-ts fit-detector``: a table of mostly normal rows becomes a detector that can be watched with."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from txl_ts.cli.forecast import check_folder, check_names
from txl_ts.cli.tables import read_sensors
from txl_ts.errors import ParameterError


def run_fit_detector(
    data: Path,
    out: Path,
    *,
    id_col: str,
    time_col: str,
    sensors: Sequence[str] | None,
    time_format: str,
    params: dict[str, Any],
) -> None:
    """Fit a detector on a table, and save it or its graph.

    Parameters
    ----------
    data : Path
        csv or parquet.
    out : Path
        ``.txl``: the model. ``.onnx``: its graph.
    id_col, time_col, sensors, time_format
        See :func:`~txl_ts.cli.tables.read_sensors`.
    params : dict
        Parameters of the detector.
    """
    from txl_ts.estimators.detector import TXLAnomalyDetector

    if out.suffix not in (".txl", ".onnx"):
        raise ParameterError(f"--out {str(out)!r} must end with .txl, the model, or .onnx, its graph.")
    check_folder(out)
    check_names(params, known=list(inspect.signature(TXLAnomalyDetector.__init__).parameters)[1:], whose="detector")
    table, series_id, time = read_sensors(
        data, id_col=id_col, time_col=time_col, sensors=sensors, time_format=time_format
    )
    print(f"{len(table):,} rows from {data}")
    detector = TXLAnomalyDetector(**params).fit(table, time=time, series_id=series_id)
    if out.suffix == ".onnx":
        detector.export_onnx(out)
    else:
        detector.save(out)
    calibration = detector.calibration_
    print(f"Sensors: {', '.join(detector.feature_names_in_)}")
    print(
        f"Calibrated on {calibration.n:,} held-out rows, worth {calibration.n_effective:,.0f} independent ones: rows "
        f"alarm from a score of {calibration.threshold:.3g} on, {calibration.alpha:.3g} of normal rows"
    )
    print(f"Written: {out} ({out.stat().st_size / 1024:,.0f} KiB), fitted in {detector.fit_seconds_:.0f} s")
