"""``txl-ts demo``: the main job on two real streams, in one table and one picture."""

import math
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from txl_ts.cli.streams import load_streams
from txl_ts.errors import MissingExtraError, ParameterError

# Chosen on the validation rows of both streams: small tokens and a narrow network let the memory of 128 KiB reach far.
PARAMS: dict[str, Any] = {"patch_len": 12, "d_model": 32}
QUICK_PARAMS: dict[str, Any] = {"patch_len": 12, "d_model": 16, "n_heads": 2, "lookback": 96, "max_epochs": 1}
QUICK_ROWS = 2_400


def run_demo(out: Path, *, quick: bool = False, seed: int = 0) -> None:
    """Fit, backtest, stream, print one table and write one picture.

    Parameters
    ----------
    out : Path
        The picture, a PNG.
    quick : bool
        The last rows of each stream and one epoch: shows that everything runs, not what it is worth.
    seed : int

    Raises
    ------
    MissingExtraError
        Without the extra ``demo``.
    ParameterError
        If the picture cannot be written where it is asked for.
    SaveError
        If writing it fails.
    """
    begin = time.perf_counter()
    if find_spec("matplotlib") is None:
        raise MissingExtraError('the demo draws with matplotlib. Install it with `pip install "txl-ts[demo]"`.')
    if not out.parent.is_dir():
        raise ParameterError(f"--out {str(out)!r}: there is no folder {str(out.parent)!r}. Make it, or name another.")
    streams = load_streams()
    from txl_ts.cli.picture import save_picture
    from txl_ts.cli.trial import run_trial

    if quick:
        streams = [stream.tail(QUICK_ROWS) for stream in streams]
        print(f"Quick: the last {QUICK_ROWS:,} rows of each stream and one epoch. The errors mean little.")
    params = (QUICK_PARAMS if quick else PARAMS) | {"random_state": seed}
    # An export takes its time; in the quick round one is enough to see that it runs.
    trials = [run_trial(stream, params=params, with_graph=not (quick and i)) for i, stream in enumerate(streams)]
    print("\n" + "\n".join(table_lines(trials)))
    save_picture(out, trials)
    print(f"\n{time.perf_counter() - begin:.0f} s in all. Forecasts and their 80 % bands: {out}")


def table_lines(trials: Sequence[Any]) -> list[str]:
    """Lay the figures out, one column per stream."""

    def ratio(name: str) -> Callable[[Any], str]:
        return lambda trial: f"{trial.errors['txl-ts'] / trial.errors[name]:.3f}"

    def error(name: str) -> Callable[[Any], str]:
        return lambda trial: f"{trial.errors[name]:.4g}"

    def graph(name: str, form: str) -> Callable[[Any], str]:
        return lambda trial: "–" if math.isnan(trial.graph_rate_hz) else format(getattr(trial, name), form)

    naive = [name for name in trials[0].errors if name != "txl-ts"]
    rows: list[tuple[str, Callable[[Any], str]]] = [
        ("unit", lambda trial: trial.stream.unit),
        ("step", lambda trial: f"{trial.stream.step_min} min"),
        ("forecast", lambda trial: f"{trial.stream.horizon_h:g} h ahead"),
        ("origins, all in one pass", lambda trial: f"{len(trial.backtest.ordinals):,}"),
        ("", lambda trial: ""),
        ("mean absolute error: txl-ts", error("txl-ts")),
        *((f"  {name}", error(name)) for name in naive),
        *((f"txl-ts / {name}", ratio(name)) for name in naive),
        ("pinball loss", lambda trial: f"{trial.pinball:.4g}"),
        ("values inside the 80 % band", lambda trial: f"{100 * trial.coverage_80:.1f} %"),
        ("", lambda trial: ""),
        ("rows fed one by one", lambda trial: f"{trial.n_live:,}"),
        ("  update + predict, rows per second", lambda trial: f"{trial.live_rate_hz:,.0f}"),
        ("  one pass, rows per second", lambda trial: f"{trial.pass_rate_hz:,.0f}"),
        ("  largest difference, in deviations", lambda trial: f"{trial.difference:.1e}"),
        ("  exported graph, rows per second", graph("graph_rate_hz", ",.0f")),
        ("  its largest difference, in deviations", graph("graph_difference", ".1e")),
        ("state of a stream, KiB", lambda trial: f"{trial.model.params_['state_nbytes'] / 1024:.1f}"),
        ("reach of the memory, h", lambda trial: f"{trial.model.params_['reach'] * trial.stream.step_min / 60:.1f}"),
        (
            "look-back of the linear path, h",
            lambda trial: f"{trial.model.params_['lookback'] * trial.stream.step_min / 60:.1f}",
        ),
    ]
    table = [["", *(trial.stream.name for trial in trials)]]
    table += [[label, *(cell(trial) for trial in trials)] for label, cell in rows]
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    lines = [
        "   ".join([line[0].ljust(widths[0]), *(word.rjust(widths[i + 1]) for i, word in enumerate(line[1:]))]).rstrip()
        for line in table
    ]
    return [lines[0], "-" * (sum(widths) + 3 * len(trials)), *lines[1:]]
