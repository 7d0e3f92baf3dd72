"""``txl-ts bench``: the tables of ``benchmarks/``, rebuilt."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from txl_ts.errors import ParameterError

Data = Annotated[Path, typer.Option(help="Folder that holds the data sets.", metavar="DIR")]
Out = Annotated[Path, typer.Option(help="Folder for the .json and the .md file.", metavar="DIR")]
Seeds = Annotated[str, typer.Option(help="One fit per seed, such as 0,1,2.", metavar="N,N,…")]
FromKept = Annotated[bool, typer.Option("--from-kept", help="Fit nothing: the table of the fits that are there.")]
BaselinesOnly = Annotated[bool, typer.Option("--baselines-only", help="Naive forecasts and the ridge alone.")]

RESULTS = Path("benchmarks/results")
_HEADS = "ETTh1,M4 Hourly,taxi,simulated counts,ETTh1 side by side"
_RIVALS = "GRU,LSTM,TCN,window Transformer"
_COVERAGE = "ETTh1,ETTh2,M4 Hourly,Victoria electricity"


def bench_program() -> typer.Typer:
    """Make the sub-commands of ``txl-ts bench``, one per bench."""
    program = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Rebuild a table of benchmarks/results.")
    plain = (clients, coverage, covariates, ett, fleet, heads, m4, precision, ragged, speed, step, tabular, uneven)
    of_memory = (context, does_memory_help, gradients, importance, memory, memory_soak, regimes, window)
    of_alarms = (alarms, nab, parity, skab, tsb_ad, watching)
    of_new, of_cost = (adaptation, transfer), (row_cost, time_to_error)
    for bench in (*plain, *of_memory, *of_alarms, *of_new, *of_cost):
        program.command(bench.__name__.replace("_", "-"))(bench)
    return program


def adaptation(out: Out = RESULTS, seeds: Seeds = "0,1,2") -> None:
    """Frozen weights on systems never met, beside Kalman filters and least squares."""
    _run("adaptation", None, out, seeds=seeds, baselines_only=False, said={"seeds": (seeds, "0,1,2")})


def clients(
    out: Out = RESULTS,
    seeds: Annotated[str, typer.Option(help="The first draws the rows.", metavar="N")] = "0",
    environments: Annotated[
        Path | None,
        typer.Option(
            help="Where the clients' environments are made and found again. Default: thrown away.", metavar="DIR"
        ),
    ] = None,
    examples: Annotated[Path, typer.Option(help="The clients' sources.", metavar="DIR")] = Path("examples/clients"),
) -> None:
    """Clients in other runtimes and languages: how far they are from torch."""
    said = {"seeds": (seeds, "0")}
    _run(
        "clients", None, out, seeds=seeds, baselines_only=False, said=said, environments=environments, examples=examples
    )


def context(out: Out = RESULTS, seeds: Seeds = "1,2,3", from_kept: FromKept = False) -> None:
    """Effective context of models of equal weights on a stream that repeats itself."""
    said = {"seeds": (seeds, "1,2,3")}
    _run("context", None, out, seeds=seeds, baselines_only=False, said=said, from_kept=from_kept)


def covariates(
    data: Data,
    out: Out = RESULTS,
    seeds: Seeds = "0",
    sets: Annotated[str, typer.Option(help="Data sets.", metavar="NAME,…")] = "victoria,valencia",
    baselines_only: BaselinesOnly = False,
) -> None:
    """Victoria's electricity with its weather, Valencia's air with its holes."""
    said = {"sets": (sets, "victoria,valencia"), "seeds": (seeds, "0")}
    wanted = tuple(sets.split(","))
    _run("covariates", data, out, seeds=seeds, baselines_only=baselines_only, said=said, sets=wanted)


def does_memory_help(
    data: Data,
    out: Out = RESULTS,
    seeds: Seeds = "0,1,2",
    sets: Annotated[str, typer.Option(help="Data sets, of all by default.", metavar="NAME,…")] = "",
    no_choice: Annotated[bool, typer.Option("--no-choice", help="One learning rate and dropout for all.")] = False,
    from_kept: FromKept = False,
) -> None:
    """Memory carried, reset, and off with equal context, on six real sets."""
    said = {"sets": (sets, ""), "seeds": (seeds, "0,1,2"), "no-choice": (no_choice, False)}
    settings: dict[str, Any] = {"sets": _names(sets)} if sets else {}
    settings |= {"is_choosing": not no_choice, "from_kept": from_kept}
    _run("does_memory_help", data, out, seeds=seeds, baselines_only=False, said=said, **settings)


def ett(
    data: Data,
    out: Out = RESULTS,
    seeds: Seeds = "0,1,2",
    h: Annotated[str, typer.Option(help="Horizons in rows.", metavar="N,N,…")] = "96,192,336,720",
    sets: Annotated[str, typer.Option(help="Data sets.", metavar="NAME,…")] = "ETTh1,ETTh2",
    baselines_only: BaselinesOnly = False,
) -> None:
    """ETTh1 and ETTh2: errors over every test window."""
    settings: dict[str, Any] = {"h": whole_numbers("h", h), "sets": tuple(sets.split(","))}
    said = {"h": (h, "96,192,336,720"), "sets": (sets, "ETTh1,ETTh2"), "seeds": (seeds, "0,1,2")}
    _run("ett", data, out, seeds=seeds, baselines_only=baselines_only, said=said, **settings)


def gradients(
    out: Out = RESULTS,
    seeds: Seeds = "0,1,2",
    memories: Annotated[str, typer.Option(help="Memories.", metavar="NAME,…")] = "fifo,tokens",
    updates: Annotated[int, typer.Option(help="Steps of each fit.", metavar="N", min=1)] = 1000,
    from_kept: FromKept = False,
) -> None:
    """Gradients through 1, 2, 4 and 8 segments, and shares of them."""
    said = {"seeds": (seeds, "0,1,2"), "memories": (memories, "fifo,tokens"), "updates": (str(updates), "1000")}
    how: dict[str, Any] = {"memories": _names(memories), "n_updates": updates, "from_kept": from_kept}
    table = _run("gradients", None, out, seeds=seeds, baselines_only=False, said=said, **how)
    from txl_ts.bench.gradients import picture

    picture(table).savefig(out / "gradients.svg", metadata={"Date": None})


def importance(
    data: Data,
    out: Out = RESULTS,
    seeds: Seeds = "0,1,2",
    sets: Annotated[str, typer.Option(help="Data sets, of all by default.", metavar="NAME,…")] = "",
    from_kept: FromKept = False,
) -> None:
    """Memory by importance beside FIFO at equal slots, on real rows: negative log-likelihoods."""
    said = {"sets": (sets, ""), "seeds": (seeds, "0,1,2")}
    settings: dict[str, Any] = {"sets": _names(sets)} if sets else {}
    settings |= {"from_kept": from_kept}
    _run("importance", data, out, seeds=seeds, baselines_only=False, said=said, **settings)


def m4(
    data: Data,
    out: Out = RESULTS,
    seeds: Seeds = "0,1,2",
    group: Annotated[str, typer.Option(help="Hourly or Weekly.")] = "Hourly",
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Judge on the last training rows: for choosing.")
    ] = False,
    baselines_only: BaselinesOnly = False,
) -> None:
    """M4 Hourly or Weekly, by the competition's measures."""
    said = {"group": (group, "Hourly"), "held-out": (held_out, False), "seeds": (seeds, "0,1,2")}
    _run("m4", data, out, seeds=seeds, baselines_only=baselines_only, said=said, group=group, held_out=held_out)


def memory(
    out: Out = RESULTS,
    seeds: Seeds = "2,3,4,5,6",
    tasks: Annotated[str, typer.Option(help="Tasks, all by default.", metavar="NAME;…")] = "",
    rivals: Annotated[str, typer.Option(help="Models beside ours.", metavar="NAME,…")] = _RIVALS,
    jobs: Annotated[int, typer.Option(help="Processes.", metavar="N", min=1)] = 1,
    from_kept: FromKept = False,
) -> None:
    """Synthetic tasks at known distances, every memory policy beside rivals of equal weights."""
    said = {"seeds": (seeds, "2,3,4,5,6"), "tasks": (tasks, ""), "rivals": (rivals, _RIVALS)}
    settings: dict[str, Any] = {"tasks": _names(tasks, ";")} if tasks else {}
    settings |= {"rivals": _names(rivals), "n_jobs": jobs, "from_kept": from_kept}
    _run("memory", None, out, seeds=seeds, baselines_only=False, said=said, **settings)


def memory_soak(
    out: Out = RESULTS,
    seeds: Annotated[str, typer.Option(help="The first draws weights and rows.", metavar="N")] = "0",
    rows: Annotated[int, typer.Option(help="Of the stream, in calls of 5,000.", metavar="N", min=100_000)] = 1_000_000,
    from_kept: FromKept = False,
) -> None:
    """A million rows through each memory policy: bounds, float32 and bfloat16 beside float64, time."""
    said = {"seeds": (seeds, "0"), "rows": (str(rows), "1000000")}
    _run("memory_soak", None, out, seeds=seeds, baselines_only=False, said=said, n_rows=rows, from_kept=from_kept)


def nab(data: Data, out: Out = RESULTS, seeds: Seeds = "0,1,2", baselines_only: BaselinesOnly = False) -> None:
    """Numenta Anomaly Benchmark: official and honest scores of 58 streams."""
    _run("nab", data, out, seeds=seeds, baselines_only=baselines_only, said={"seeds": (seeds, "0,1,2")})


def parity(
    data: Data,
    out: Out = RESULTS,
    seeds: Annotated[str, typer.Option(help="The first is used.", metavar="N")] = "0",
) -> None:
    """A detector over arrays, over streams and as a graph: how far they are apart on real rows."""
    _run("parity", data, out, seeds=seeds, baselines_only=False, said={"seeds": (seeds, "0")})


def precision(
    data: Data,
    out: Out = RESULTS,
    seeds: Annotated[str, typer.Option(help="The first is used.", metavar="N")] = "0",
) -> None:
    """What fewer bits cost in an exported graph."""
    _run("precision", data, out, seeds=seeds, baselines_only=False, said={"seeds": (seeds, "0")})


def ragged(
    out: Out = RESULTS,
    seeds: Annotated[str, typer.Option(help="The first draws the rows.", metavar="N")] = "0",
    peer: Annotated[
        Path | None, typer.Option(help="Python of an environment that has neuralforecast.", metavar="PYTHON")
    ] = None,
) -> None:
    """Ten thousand ragged series: seconds and bytes from frame to forecast."""
    _run("ragged", None, out, seeds=seeds, baselines_only=False, said={"seeds": (seeds, "0")}, peer=peer)


def regimes(out: Out = RESULTS, seeds: Seeds = "0,1,2") -> None:
    """Ten regimes in a row: what is forgotten, with and without memory and replay."""
    _run("regimes", None, out, seeds=seeds, baselines_only=False, said={"seeds": (seeds, "0,1,2")})


def row_cost(
    out: Out = RESULTS,
    seeds: Annotated[str, typer.Option(help="The first draws the weights.", metavar="N")] = "0",
) -> None:
    """CPU time of one more row: carried memory, a window computed again, an LSTM."""
    _run("row_cost", None, out, seeds=seeds, baselines_only=False, said={"seeds": (seeds, "0")})


def skab(data: Data, out: Out = RESULTS, seeds: Seeds = "0,1,2", baselines_only: BaselinesOnly = False) -> None:
    """SKAB, a pump with eight sensors: F1, false and missed alarms."""
    _run("skab", data, out, seeds=seeds, baselines_only=baselines_only, said={"seeds": (seeds, "0,1,2")})


def speed(
    data: Data,
    out: Out = RESULTS,
    seeds: Annotated[str, typer.Option(help="The first is used.", metavar="N")] = "0",
    no_training_rows: Annotated[
        bool, typer.Option("--no-training-rows", help="Leave out the memory of training on millions of rows: minutes.")
    ] = False,
) -> None:
    """Time per row and memory of the default forecaster."""
    said = {"seeds": (seeds, "0"), "no-training-rows": (no_training_rows, False)}
    _run("speed", data, out, seeds=seeds, baselines_only=False, said=said, training_rows=not no_training_rows)


def step(
    out: Out = RESULTS,
    seeds: Annotated[str, typer.Option(help="The first draws the weights.", metavar="N")] = "0",
) -> None:
    """Microseconds of one row through the exported graph."""
    _run("step", None, out, seeds=seeds, baselines_only=False, said={"seeds": (seeds, "0")})


def alarms(
    out: Out = RESULTS,
    seeds: Annotated[str, typer.Option(help="The first draws the runs.", metavar="N")] = "0",
) -> None:
    """Alarms on simulated normal rows, beside their budget."""
    _run("alarms", None, out, seeds=seeds, baselines_only=False, said={"seeds": (seeds, "0")})


def coverage(
    data: Data,
    out: Out = RESULTS,
    seeds: Annotated[str, typer.Option(help="The first is used.", metavar="N")] = "0",
    sets: Annotated[str, typer.Option(help="Data sets.", metavar="NAME,…")] = _COVERAGE,
) -> None:
    """Coverage of bands per step ahead, before and after calibration."""
    said = {"sets": (sets, _COVERAGE), "seeds": (seeds, "0")}
    _run("coverage", data, out, seeds=seeds, baselines_only=False, said=said, sets=tuple(sets.split(",")))


def heads(
    data: Data,
    out: Out = RESULTS,
    seeds: Annotated[str, typer.Option(help="The first is used.", metavar="N")] = "0",
    sets: Annotated[str, typer.Option(help="Data sets.", metavar="NAME,…")] = _HEADS,
) -> None:
    """Quantiles or a law, and channels side by side or mixed."""
    said = {"sets": (sets, _HEADS), "seeds": (seeds, "0")}
    _run("heads", data, out, seeds=seeds, baselines_only=False, said=said, sets=tuple(sets.split(",")))


def fleet(
    out: Out = RESULTS,
    seeds: Annotated[str, typer.Option(help="The first draws weights and rows.", metavar="N")] = "0",
) -> None:
    """Thousands of streams in one session, beside the bare graph."""
    _run("fleet", None, out, seeds=seeds, baselines_only=False, said={"seeds": (seeds, "0")})


def tabular(
    data: Data,
    out: Out = RESULTS,
    seeds: Seeds = "0,1,2",
    sets: Annotated[str, typer.Option(help="Data sets, of all by default.", metavar="NAME,…")] = "",
    baselines_only: BaselinesOnly = False,
) -> None:
    """Classes and values: occupancy, UEA sets, remaining life."""
    said = {"seeds": (seeds, "0,1,2"), "sets": (sets, "")}
    settings: dict[str, Any] = {"sets": tuple(sets.split(","))} if sets else {}
    _run("tabular", data, out, seeds=seeds, baselines_only=baselines_only, said=said, **settings)


def time_to_error(data: Data, out: Out = RESULTS, seeds: Seeds = "0,1,2", from_kept: FromKept = False) -> None:
    """CPU seconds of training to equal errors on ETT, beside an LSTM of equal weights."""
    said = {"seeds": (seeds, "0,1,2")}
    _run("time_to_error", data, out, seeds=seeds, baselines_only=False, said=said, from_kept=from_kept)


def tsb_ad(
    data: Data,
    out: Out = RESULTS,
    seeds: Seeds = "0,1,2",
    parts: Annotated[str, typer.Option(help="Parts of the benchmark.", metavar="NAME,…")] = "tuning,M,U",
    baselines_only: BaselinesOnly = False,
) -> None:
    """TSB-AD, rebuilt from NAB, SMAP and MSL: VUS-PR."""
    said = {"parts": (parts, "tuning,M,U"), "seeds": (seeds, "0,1,2")}
    wanted = tuple(parts.split(","))
    _run("tsb_ad", data, out, seeds=seeds, baselines_only=baselines_only, said=said, parts=wanted)


def uneven(
    data: Data,
    out: Out = RESULTS,
    seeds: Seeds = "0",
    sets: Annotated[str, typer.Option(help="Data sets.", metavar="NAME,…")] = "vitals,air",
    baselines_only: BaselinesOnly = False,
) -> None:
    """Rows that come unevenly: real time beside rows only and beside an hourly grid."""
    said = {"sets": (sets, "vitals,air"), "seeds": (seeds, "0")}
    wanted = tuple(sets.split(","))
    _run("uneven", data, out, seeds=seeds, baselines_only=baselines_only, said=said, sets=wanted)


def transfer(
    data: Data,
    out: Out = RESULTS,
    seeds: Seeds = "0,1,2",
    sets: Annotated[str, typer.Option(help="Data sets, of all by default.", metavar="NAME,…")] = "",
    no_memory: Annotated[
        bool, typer.Option("--no-memory", help="Leave out the bytes of a training step: they start processes.")
    ] = False,
) -> None:
    """Held-out series of M4 Hourly and ETT with few rows: frozen, fine-tuned, from scratch."""
    said = {"seeds": (seeds, "0,1,2"), "sets": (sets, ""), "no-memory": (no_memory, False)}
    wanted = _names(sets) if sets else None
    _run("transfer", data, out, seeds=seeds, baselines_only=False, said=said, sets=wanted, memory=not no_memory)


def watching(
    out: Out = RESULTS,
    seeds: Annotated[str, typer.Option(help="The first draws the rows.", metavar="N")] = "0",
) -> None:
    """Rows a second of a detector, and the load of a thousand."""
    _run("watching", None, out, seeds=seeds, baselines_only=False, said={"seeds": (seeds, "0")})


def window(data: Data, out: Out = RESULTS, seeds: Seeds = "0,1,2") -> None:
    """The same weights with a longer or shorter memory, on ETTh1's validation rows."""
    _run("window", data, out, seeds=seeds, baselines_only=False, said={"seeds": (seeds, "0,1,2")})


def _names(text: str, between: str = ",") -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(between) if part.strip())


def whole_numbers(name: str, text: str) -> tuple[int, ...]:
    """Read ``"96,192"``.

    Raises
    ------
    ParameterError
        If it is anything else.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ParameterError(
            f"--{name} {text!r} must be whole numbers with commas between them, such as 96,192."
        ) from None


def _run(
    name: str,
    data: Path | None,
    out: Path,
    *,
    seeds: str,
    baselines_only: bool,
    said: Mapping[str, tuple[Any, Any]],
    **settings: Any,
) -> dict[str, Any]:
    from txl_ts.bench import run_bench
    from txl_ts.bench.report import markdown

    if out.exists() and not out.is_dir():
        raise ParameterError(f"--out {str(out)!r} is a file. Name a folder.")  # said now, not after hours of fits
    settings["seeds"] = whole_numbers("seeds", seeds)
    words = [f"txl-ts bench {name.replace('_', '-')}" + (" --data DIR" if data else "")]
    for option, (value, default) in said.items():
        if value != default:
            words.append(f"--{option}" if value is True else f"--{option} {shlex.quote(value)}")
    if baselines_only:
        settings["variants"] = ()
        words.append("--baselines-only")
    table = run_bench(name, data, out, command=" ".join(words), **settings)
    print(markdown(table))
    print(f"Written to {out / table['name']}.json and .md.")
    return table
