"""The commands and their options; what they do lives next door and loads when it is asked for."""

from pathlib import Path
from typing import Annotated

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
    """Show what a file of txl-ts holds: sizes, state, reach, names."""
    from txl_ts.cli.graph import run_inspect

    run_inspect(path)
