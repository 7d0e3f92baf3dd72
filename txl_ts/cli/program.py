"""The commands and their options; what they do lives next door and loads when it is asked for."""

from pathlib import Path
from typing import Annotated, Any

import typer

from txl_ts import __version__
from txl_ts.cli.bench import bench_program
from txl_ts.errors import ParameterError

# Plain text everywhere: the same help in a terminal, a pipe and a log.
app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(bench_program(), name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"txl-ts {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and stop.")
    ] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error was raised.")] = False,
) -> None:
    """Transformer-XL's recurrent memory for time series and sensor streams."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The picture to write.")] = Path("txl-ts-demo.png"),
    quick: Annotated[bool, typer.Option("--quick", help="Few rows and one epoch: does it run?")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the fits.")] = 0,
) -> None:
    """Fit, backtest and stream glucose and sea temperature.

    One model for each of the two real series that bokeh_sampledata ships: it forecasts from every held-out row in one
    pass, beside naive forecasts, takes in a day row by row, prints one table and writes one picture.
    """
    from txl_ts.cli.demo import run_demo

    run_demo(out, quick=quick, seed=seed)


@app.command()
def fit(
    data: Annotated[Path, typer.Argument(help="A table, .csv or .parquet: one row per series and time.", exists=True)],
    out: Annotated[Path, typer.Option(help="The model file to write.")] = Path("model.txl"),
    h: Annotated[int, typer.Option("-h", "--h", help="Steps ahead.", min=1)] = 1,
    freq: Annotated[str, typer.Option(help="Step of the grid, such as 1h or 5min.")] = "auto",
    quantiles: Annotated[str | None, typer.Option(help="Trained quantiles.", metavar="Q,Q,…")] = None,
    id_col: Annotated[str, typer.Option(help="Column that names the series.")] = "unique_id",
    time_col: Annotated[str, typer.Option(help="Column of times.")] = "ds",
    target_col: Annotated[str, typer.Option(help="Column of values.")] = "y",
    no_id: Annotated[bool, typer.Option("--no-id", help="The table is one series.")] = False,
    time_format: Annotated[str, typer.Option(help="How times are written in csv, if not in ISO 8601.")] = "",
    val_size: Annotated[int | None, typer.Option(help="Last rows of each series that choose the epoch.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the fit.")] = 0,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any parameter of TXLForecaster; may repeat.", metavar="NAME=VALUE"),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show a bar.")] = False,
) -> None:
    """Fit a forecaster on a table, and save it with its memories."""
    from txl_ts.cli.forecast import Columns, numbers, run_fit, settings

    params: dict[str, Any] = {
        "h": h,
        "freq": int(freq) if freq.isdigit() else freq,
        "random_state": seed,
        "verbose": verbose,
    }
    params |= {} if quantiles is None else {"quantiles": numbers("--quantiles", quantiles)}
    columns = Columns(None if no_id else id_col, time_col, target_col, time_format)
    run_fit(data, out, columns=columns, params=params | settings(setting or []), val_size=val_size)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="A saved forecaster, such as model.txl.", exists=True)],
    data: Annotated[
        Path | None, typer.Option(help="Rows to walk first, .csv or .parquet. Default: the fitted memories speak.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Forecasts, .csv or .parquet. Default: csv is printed.")] = None,
    h: Annotated[int | None, typer.Option("-h", "--h", help="Steps ahead. Default: as fitted.", min=1)] = None,
    level: Annotated[str | None, typer.Option(help="Bands in percent, such as 80,90.", metavar="N,N,…")] = None,
    quantiles: Annotated[str | None, typer.Option(help="Instead of bands.", metavar="Q,Q,…")] = None,
    ids: Annotated[str | None, typer.Option(help="Only these series.", metavar="ID,ID,…")] = None,
    start: Annotated[
        str | None, typer.Option(help="With --data: 'fitted' goes on from the fitted memories, instead of empty ones.")
    ] = None,
    time_format: Annotated[str, typer.Option(help="How times are written in csv, if not in ISO 8601.")] = "",
) -> None:
    """Forecast with a saved model. The model file is not changed."""
    from txl_ts.cli.forecast import numbers, run_predict

    run_predict(
        model,
        data,
        out,
        h=h,
        level=numbers("--level", level),
        quantiles=numbers("--quantiles", quantiles),
        ids=None if ids is None else ids.split(","),
        start=start,
        time_format=time_format,
    )


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="A saved forecaster, such as demand.txl.", exists=True)],
    out: Annotated[Path | None, typer.Option(help="The graph to write. Default: beside the model.")] = None,
    triton: Annotated[
        Path | None, typer.Option(help="Write a model repository for Triton instead.", metavar="DIR")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="Of the weights: float32, float16, int8-weights or int8-dynamic.")
    ] = "float32",
    profile: Annotated[str, typer.Option(help="Version of ONNX's operators: opset18 or opset23.")] = "opset18",
    max_error: Annotated[
        float, typer.Option(help="Largest error of a precision, in standard deviations of the target.")
    ] = 0.05,
) -> None:
    """Write a saved forecaster as one stateful ONNX graph.

    Its contract and its fitted memories go beside it.
    """
    from txl_ts.cli.graph import run_export, run_export_triton

    if triton is None:
        run_export(model, out, precision=precision, profile=profile, max_error=max_error)
    elif out is None:
        run_export_triton(model, triton)
    else:
        raise ParameterError("--out and --triton name two places. Give one of them, and call twice for both.")


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="A model, state, graph or contract.", exists=True)],
) -> None:
    """Show what a file of txl-ts holds: sizes, state, reach."""
    from txl_ts.cli.graph import run_inspect

    run_inspect(path)


@app.command()
def fit_detector(
    data: Annotated[
        Path, typer.Argument(help="A table, .csv or .parquet: times, perhaps streams, and sensors.", exists=True)
    ],
    out: Annotated[Path, typer.Option(help="The model to write, .txl, or its graph, .onnx.")] = Path("detector.txl"),
    sensors: Annotated[str | None, typer.Option(help="Default: all other columns.", metavar="NAME,…")] = None,
    time_col: Annotated[str, typer.Option(help="Of times. Default: time, ds, timestamp or datetime.")] = "",
    id_col: Annotated[str, typer.Option(help="That names the stream. Default: stream or unique_id, if there.")] = "",
    time_format: Annotated[str, typer.Option(help="How times are written in csv, if not in ISO 8601.")] = "",
    false_alarms: Annotated[str | None, typer.Option(help="Of a stream, such as '1 per 30d'.")] = None,
    contamination: Annotated[float | None, typer.Option(help="Share of normal rows that may alarm.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the fit.")] = 0,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any parameter of TXLAnomalyDetector; may repeat.", metavar="NAME=VALUE"),
    ] = None,
) -> None:
    """Fit an anomaly detector on a table of mostly normal rows."""
    from txl_ts.cli.detector import run_fit_detector
    from txl_ts.cli.forecast import settings

    params: dict[str, Any] = {"random_state": seed, **settings(setting or [])}
    given = {"false_alarms": false_alarms, "contamination": contamination}
    params |= {name: value for name, value in given.items() if value is not None}
    run_fit_detector(
        data,
        out,
        id_col=id_col,
        time_col=time_col,
        sensors=None if sensors is None else sensors.split(","),
        time_format=time_format,
        params=params,
    )


@app.command()
def watch(
    model: Annotated[
        Path, typer.Argument(help="A saved model, such as pump.txl, or its graph, pump.onnx.", exists=True)
    ],
    data: Annotated[
        Path | None, typer.Argument(help="Lines of readings. Default: standard input.", exists=True, dir_okay=False)
    ] = None,
    form: Annotated[str, typer.Option("--format", help="auto, csv or jsonl.")] = "auto",
    time_col: Annotated[str, typer.Option(help="Of times. Default: time, ds, timestamp or datetime.")] = "",
    id_col: Annotated[str, typer.Option(help="That names the stream. Default: stream or unique_id, if there.")] = "",
    tag_col: Annotated[str, typer.Option(help="Of the sensor, where a line is one reading.")] = "tag",
    value_col: Annotated[str, typer.Option(help="Of its value.")] = "value",
    columns: Annotated[str | None, typer.Option(help="Of a csv without a header.", metavar="NAME,…")] = None,
    time_format: Annotated[str, typer.Option(help="How times are written, if not in ISO 8601.")] = "",
    time_unit: Annotated[str, typer.Option(help="Of times that are numbers: s, ms, us or ns.")] = "",
    settings: Annotated[
        Path | None, typer.Option(help="JSON: sensors, clocks, alert rules.", exists=True, dir_okay=False)
    ] = None,
    tick: Annotated[str | None, typer.Option(help="Step of the rows. Default: the model's.")] = None,
    late: Annotated[str | None, typer.Option(help="Readings wait so long, and are put in order.")] = None,
    max_gap: Annotated[str | None, typer.Option(help="Bridged; after a longer one the memory begins anew.")] = None,
    stale_after: Annotated[str | None, typer.Option(help="A sensor without a reading for longer is dead.")] = None,
    stuck_after: Annotated[str | None, typer.Option(help="With the same value for so long it is stuck.")] = None,
    guard: Annotated[
        list[str] | None,
        typer.Option("--range", help="What a sensor can read; may repeat.", metavar="NAME=LOW:HIGH"),
    ] = None,
    false_alarms: Annotated[str | None, typer.Option(help="Instead of the detector's, such as '1 per 30d'.")] = None,
    contamination: Annotated[float | None, typer.Option(help="The same as a share of rows.")] = None,
    out: Annotated[Path | None, typer.Option(help="Append to a file. Default: standard output.")] = None,
    alerts: Annotated[Path | None, typer.Option(help="Append alerts, one a line, to a file too.")] = None,
    alerts_only: Annotated[bool, typer.Option("--alerts-only", help="Alerts, one a line, instead of rows.")] = False,
    details: Annotated[bool, typer.Option("--details", help="Values, parts, bands, status of each sensor.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Read on as the file grows or is rotated.")] = False,
    state: Annotated[Path | None, typer.Option(help="Folder of the snapshot to go on from.", metavar="DIR")] = None,
    every: Annotated[int, typer.Option(help="Lines from one snapshot to the next.", min=1)] = 1000,
    batch: Annotated[int, typer.Option(help="Lines taken together at most, if they are there.", min=1)] = 1,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at a line that cannot be used.")] = False,
    metrics: Annotated[bool, typer.Option("--metrics", help="Print counters on stderr at the end.")] = False,
) -> None:
    """Watch streams: readings in; scores, statuses, alerts out.

    Output is JSON, one line per row. With --state a run that was stopped or killed goes on where it was, and a file of
    output holds every line once.
    """
    from txl_ts.cli.watch.run import Manner
    from txl_ts.cli.watch.start import run_watch

    code = run_watch(
        model,
        data,
        reading={
            "form": form,
            "time_col": time_col,
            "id_col": id_col,
            "tag_col": tag_col,
            "value_col": value_col,
            "columns": None if columns is None else columns.split(","),
            "time_format": time_format,
            "time_unit": time_unit,
        },
        settings=settings,
        options={
            "tick": tick,
            "late": late,
            "max_gap": max_gap,
            "stale_after": stale_after,
            "stuck_after": stuck_after,
            "false_alarms": false_alarms,
            "contamination": contamination,
        },
        guards=guard or [],
        out=out,
        alerts=alerts,
        follow=follow,
        state=state,
        manner=Manner(details=details, alerts_only=alerts_only, every=every, batch=batch, is_strict=strict),
        with_metrics=metrics,
    )
    raise typer.Exit(code)
