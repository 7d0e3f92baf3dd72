"""Benchmarks on real data, each with its naive baselines and a ridge of equal context in the same table.

``BENCHES`` names them. A bench is a function ``(data, out=None, **settings) -> dict``; it is loaded when it is called.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from os import PathLike
from types import MappingProxyType
from typing import Any

__all__ = ["BENCHES", "run_ett", "run_m4", "run_speed", "run_step", "run_tabular"]


def run_ett(data: str | PathLike[str], out: str | PathLike[str] | None = None, **settings: Any) -> dict[str, Any]:
    """Run the ETT table and write ``ett.json`` and ``ett.md``.

    Parameters
    ----------
    data : path
        Folder that holds ``ett/ETTh1.csv`` and ``ett/ETTh2.csv``.
    out : path, optional
        Folder for the results; nothing is written without it.
    **settings
        Passed to :func:`txl_ts.bench.ett.run`.

    Returns
    -------
    dict
        The table, as :mod:`txl_ts.bench.report` describes it.
    """
    return _run("ett", data, out, settings)


def run_m4(data: str | PathLike[str], out: str | PathLike[str] | None = None, **settings: Any) -> dict[str, Any]:
    """Run an M4 table and write ``m4-hourly.json`` and ``m4-hourly.md`` (or ``m4-weekly``).

    Parameters
    ----------
    data : path
        Folder that holds ``m4_hourly/`` and ``m4_weekly/``.
    out : path, optional
        Folder for the results; nothing is written without it.
    **settings
        Passed to :func:`txl_ts.bench.m4.run`.

    Returns
    -------
    dict
        The table, as :mod:`txl_ts.bench.report` describes it.
    """
    return _run("m4", data, out, settings)


def run_speed(data: str | PathLike[str], out: str | PathLike[str] | None = None, **settings: Any) -> dict[str, Any]:
    """Run the speed table and write ``speed.json`` and ``speed.md``.

    Parameters
    ----------
    data : path
        Folder that holds ``ett/ETTh1.csv``.
    out : path, optional
        Folder for the results; nothing is written without it.
    **settings
        Passed to :func:`txl_ts.bench.speed.run`.

    Returns
    -------
    dict
        The table, as :mod:`txl_ts.bench.report` describes it.
    """
    return _run("speed", data, out, settings)


def run_step(
    data: str | PathLike[str] | None = None, out: str | PathLike[str] | None = None, **settings: Any
) -> dict[str, Any]:
    """Run the step table and write ``step.json`` and ``step.md``.

    Parameters
    ----------
    data : path, optional
        Not used.
    out : path, optional
        Folder for the results; nothing is written without it.
    **settings
        Passed to :func:`txl_ts.bench.step.run`.

    Returns
    -------
    dict
        The table, as :mod:`txl_ts.bench.report` describes it.
    """
    return _run("step", data, out, settings)


def run_tabular(data: str | PathLike[str], out: str | PathLike[str] | None = None, **settings: Any) -> dict[str, Any]:
    """Run the table of classes and values and write ``tabular.json`` and ``tabular.md``.

    Parameters
    ----------
    data : path
        Folder that holds ``occupancy/``, ``uea_small/`` and ``cmapss/``.
    out : path, optional
        Folder for the results; nothing is written without it.
    **settings
        Passed to :func:`txl_ts.bench.tabular.run`.

    Returns
    -------
    dict
        The table, as :mod:`txl_ts.bench.report` describes it.
    """
    return _run("tabular", data, out, settings)


BENCHES: Mapping[str, Callable[..., dict[str, Any]]] = MappingProxyType(
    {"ett": run_ett, "m4": run_m4, "speed": run_speed, "step": run_step, "tabular": run_tabular}
)


def _run(
    name: str, data: str | PathLike[str] | None, out: str | PathLike[str] | None, settings: dict[str, Any]
) -> dict[str, Any]:
    table: dict[str, Any] = import_module(f"txl_ts.bench.{name}").run(data, **settings)
    if out is not None:
        import_module("txl_ts.bench.report").write(table, out=out)
    return table
