"""Benchmarks on real data, each with its naive baselines and a ridge of equal context in the same table.

A bench is a module of this package with ``run(data, **settings)``, which gives a table; it is loaded when it is called.
"""

from importlib import import_module
from os import PathLike
from typing import Any

from txl_ts.errors import ParameterError

__all__ = ["BENCHES", "run_bench"]

BENCHES = (
    "adaptation",
    "alarms",
    "clients",
    "context",
    "covariates",
    "coverage",
    "does_memory_help",
    "ett",
    "fleet",
    "gradients",
    "heads",
    "importance",
    "m4",
    "memory",
    "memory_soak",
    "nab",
    "parity",
    "precision",
    "ragged",
    "regimes",
    "row_cost",
    "skab",
    "speed",
    "step",
    "tabular",
    "time_to_error",
    "transfer",
    "tsb_ad",
    "uneven",
    "watching",
    "window",
)
# Each finished fit is kept in the folder of the results; a second call with the same settings goes on from there.
KEPT = ("context", "does_memory_help", "gradients", "importance", "memory", "memory_soak", "time_to_error")


def run_bench(
    name: str, data: str | PathLike[str] | None = None, out: str | PathLike[str] | None = None, **settings: Any
) -> dict[str, Any]:
    """Run a bench and write its table as ``<table>.json`` and ``<table>.md``.

    Parameters
    ----------
    name : str
        One of ``BENCHES``.
    data : path, optional
        Folder that holds the data sets; some benches need none.
    out : path, optional
        Folder for the results; nothing is written without it.
    **settings
        Passed to ``run`` of ``txl_ts.bench.<name>``.

    Returns
    -------
    dict
        The table, as :mod:`txl_ts.bench.report` describes it.

    Raises
    ------
    ParameterError
        If there is no bench of that name.
    """
    if name not in BENCHES:
        raise ParameterError(f"name={name!r} is no bench. Choose one of {list(BENCHES)}.")
    if name in KEPT:
        settings.setdefault("kept", out)
    table: dict[str, Any] = import_module(f"txl_ts.bench.{name}").run(data, **settings)
    if out is not None:
        import_module("txl_ts.bench.report").write(table, out=out)
    return table
