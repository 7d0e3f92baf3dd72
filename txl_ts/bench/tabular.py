"""Classes and values from rows and panels: occupancy, four UEA sets, and remaining life on C-MAPSS FD001."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_ts.bench import report
from txl_ts.bench.tabular_sets import OCCUPANCY, UEA, Engines, Panel, engines, occupancy, uea

SETS = ("occupancy", *UEA, "cmapss")
LUX = 365
WINDOW = 30
# What validation chose, see benchmarks/README.md; everything else is the estimators' default.
OCCUPANCY_PARAMS: Mapping[str, Any] = MappingProxyType({"max_epochs": 5})
PER_SERIES: Mapping[str, Any] = MappingProxyType({"pooling": "mean"})
REMAINING_LIFE: Mapping[str, Any] = MappingProxyType({"max_epochs": 40, "learning_rate": 5e-3})
COLUMNS = MappingProxyType(
    {
        "set": "set",
        "model": "model",
        "metric": "measure",
        "value": "test",
        "spread": "± (max − min)",
        "loss": "log loss",
        "n_seeds": "seeds",
        "n_parameters": "parameters",
        "train_s": "training, s",
    }
)


@dataclass(frozen=True)
class Verdict:
    """What one fit was worth on one test part.

    Attributes
    ----------
    part : str
        Name of the test part.
    metric : str
    value : float
    loss : float or None
        Log loss of the probabilities; None where there are none.
    """

    part: str
    metric: str
    value: float
    loss: float | None = None


@dataclass(frozen=True)
class Fit:
    """A fitted model's verdicts, and what it took.

    Attributes
    ----------
    verdicts : list of Verdict
    train_s : float
    n_parameters : int or None
    """

    verdicts: list[Verdict]
    train_s: float
    n_parameters: int | None = None


@dataclass(frozen=True)
class Contender:
    """A row of the table.

    Attributes
    ----------
    name : str
    run : callable
        ``run(seed)`` gives a :class:`Fit`.
    seeded : bool
        False runs once: nothing in it is random.
    """

    name: str
    run: Callable[[int], Fit]
    seeded: bool = field(default=True)


def run(
    data: str | PathLike[str],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    sets: Sequence[str] = SETS,
    variants: Sequence[Any] | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Fit and judge every contender.

    Parameters
    ----------
    data : path
        Folder that holds ``occupancy/``, ``uea_small/`` and ``cmapss/``.
    seeds : sequence of int
        One fit per seed; the table shows means and the spread.
    sets : sequence of str
        Some of ``occupancy``, the UEA names, ``cmapss``.
    variants : sequence, optional
        Empty for the baselines alone.
    command : str, optional
        What rebuilds the table.

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`, with every single fit under ``runs``.
    """
    rows: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    for name in sets:
        for contender in _contenders(data, name):
            if variants is not None and not variants and contender.name.startswith("TXL"):
                continue
            fits = [contender.run(seed) for seed in (seeds if contender.seeded else seeds[:1])]
            rows += _summaries(contender.name, fits)
            runs += [
                {"model": contender.name, "seed": seed, "train_s": fit.train_s, **vars(verdict)}
                for seed, fit in zip(seeds, fits, strict=False)
                for verdict in fit.verdicts
            ]
    return {
        "name": "tabular",
        "title": "Classes and values: occupancy, UEA, remaining life",
        "command": command or "txl-ts bench tabular --data DIR",
        "protocol": [
            "Official splits. Occupancy: trained on datatraining as one series, every minute of the two test files is "
            "judged, each walked once from an empty memory. UEA: one class per series; baselines see the series "
            "flattened, padded with 0 and scaled by the training rows.",
            "C-MAPSS FD001: 14 sensors, target capped at 125, one answer per test engine (its last row), root mean "
            "squared error against the true remaining cycles capped at 125, and as they are. The boosted trees see "
            f"last value, mean, deviation and slope of each sensor over {WINDOW} rows.",
        ],
        "columns": dict(COLUMNS),
        "rows": rows,
        "runs": runs,
        "notes": [
            "Accuracy: higher is better; RMSE: lower is better. Choices were made on training rows alone.",
        ],
        "seeds": list(seeds),
        "environment": report.environment(),
    }


def _contenders(data: str | PathLike[str], name: str) -> Iterator[Contender]:
    if name == "occupancy":
        yield from _occupancy(data)
    elif name == "cmapss":
        yield from _cmapss(data)
    else:
        yield from _uea(data, name)


def _summaries(name: str, fits: list[Fit]) -> list[dict[str, Any]]:
    """One row per test part: means over seeds, and the spread."""
    out = []
    for i, verdict in enumerate(fits[0].verdicts):
        values = [fit.verdicts[i].value for fit in fits]
        losses = [fit.verdicts[i].loss for fit in fits]
        out.append(
            {
                "set": verdict.part,
                "model": name,
                "metric": verdict.metric,
                "value": float(np.mean(values)),
                "spread": max(values) - min(values) if len(values) > 1 else None,
                "loss": None if None in losses else float(np.mean([x for x in losses if x is not None])),
                "n_seeds": len(fits),
                "n_parameters": fits[0].n_parameters,
                "train_s": float(np.mean([fit.train_s for fit in fits])),
            }
        )
    return out


# -- occupancy --------------------------------------------------------------------------------------------------------


def _occupancy(data: str | PathLike[str]) -> Iterator[Contender]:
    train = occupancy(data, "datatraining")
    tests = {part: occupancy(data, part) for part in ("datatest", "datatest2")}
    columns = list(OCCUPANCY)

    def judged(answers: Callable[[Any], tuple[Any, Any]]) -> list[Verdict]:
        return [
            _accuracy(f"occupancy {part}", frame["Occupancy"].to_numpy(), *answers(frame[columns]))
            for part, frame in tests.items()
        ]

    def majority(seed: int) -> Fit:
        p = np.array([[1 - train["Occupancy"].mean(), train["Occupancy"].mean()]])
        return Fit(judged(lambda X: (np.zeros(len(X), int), p.repeat(len(X), axis=0))), 0.0)

    def rule(seed: int) -> Fit:
        return Fit(judged(lambda X: ((X["Light"] >= LUX).to_numpy().astype(int), None)), 0.0)

    def forest(seed: int) -> Fit:
        from sklearn.ensemble import RandomForestClassifier

        model, seconds = _timed(RandomForestClassifier(300, random_state=seed), train[columns], train["Occupancy"])
        return Fit(judged(lambda X: (model.predict(X), model.predict_proba(X))), seconds)

    def ours(params: Mapping[str, Any]) -> Callable[[int], Fit]:
        def fit(seed: int) -> Fit:
            from txl_ts.estimators.classifier import TXLClassifier

            made = TXLClassifier(random_state=seed, **params)
            model, seconds = _timed(made, train[columns], train["Occupancy"])
            verdicts = judged(lambda X: (model.predict(X), model.predict_proba(X)))
            return Fit(verdicts, seconds, model.n_parameters_)

        return fit

    yield Contender("majority", majority, seeded=False)
    yield Contender(f"rule: Light >= {LUX}", rule, seeded=False)
    yield Contender("random forest", forest)
    yield Contender("TXLClassifier", ours(OCCUPANCY_PARAMS))
    yield Contender("TXLClassifier, memory off", ours({**OCCUPANCY_PARAMS, "mem_len": 0}))


# -- UEA --------------------------------------------------------------------------------------------------------------


def _uea(data: str | PathLike[str], name: str) -> Iterator[Contender]:
    train, test = uea(data, name, "TRAIN"), uea(data, name, "TEST")
    flat, flat_test = _flattened(train, like=train), _flattened(test, like=train)

    def majority(seed: int) -> Fit:
        names, count = np.unique(train.y, return_counts=True)
        p = (count / count.sum())[None].repeat(len(test.y), axis=0)
        return Fit([_accuracy(name, test.y, np.full(len(test.y), names[count.argmax()]), p, classes=names)], 0.0)

    def neighbour(seed: int) -> Fit:
        from sklearn.neighbors import KNeighborsClassifier

        model, seconds = _timed(KNeighborsClassifier(1), flat, train.y)
        return Fit([_accuracy(name, test.y, model.predict(flat_test), None)], seconds)

    def forest(seed: int) -> Fit:
        from sklearn.ensemble import RandomForestClassifier

        model, seconds = _timed(RandomForestClassifier(300, random_state=seed), flat, train.y)
        said, p = model.predict(flat_test), model.predict_proba(flat_test)
        return Fit([_accuracy(name, test.y, said, p, classes=model.classes_)], seconds)

    def ours(seed: int) -> Fit:
        from txl_ts.estimators.classifier import TXLClassifier

        model, seconds = _timed(TXLClassifier(random_state=seed, **PER_SERIES), train.X, train.y)
        said, p = model.predict(test.X), model.predict_proba(test.X)
        return Fit([_accuracy(name, test.y, said, p, classes=model.classes_)], seconds, model.n_parameters_)

    yield Contender("majority", majority, seeded=False)
    yield Contender("1-NN, flattened", neighbour, seeded=False)
    yield Contender("random forest, flattened", forest)
    yield Contender("TXLClassifier", ours)


def _flattened(panel: Panel, *, like: Panel) -> NDArray[np.float64]:
    """Scale by the training rows of ``like``, pad or cut to its length, and put all rows of a series side by side."""
    mean, deviation = np.nanmean(like.X, axis=(0, 1)), np.nanstd(like.X, axis=(0, 1))
    z = np.nan_to_num((panel.X - mean) / np.where(deviation > 0, deviation, 1))
    n_rows = like.X.shape[1]
    z = np.pad(z, ((0, 0), (0, max(n_rows - z.shape[1], 0)), (0, 0)))[:, :n_rows]
    return z.reshape(len(z), -1)


# -- C-MAPSS ----------------------------------------------------------------------------------------------------------


def _cmapss(data: str | PathLike[str]) -> Iterator[Contender]:
    train, test = engines(data, "train"), engines(data, "test")

    def judged(said: NDArray[Any]) -> list[Verdict]:
        last = test.last
        return [
            Verdict(f"C-MAPSS FD001, test {kind}", "RMSE", float(np.sqrt(np.mean((said[last] - truth[last]) ** 2))))
            for kind, truth in (("capped", test.left), ("raw", test.raw_left))
        ]

    def constant(seed: int) -> Fit:
        # One row per engine at a random cut is what a test row is: the mean over all rows is a fair constant.
        return Fit(judged(np.full(len(test.left), train.left.mean())), 0.0)

    def ridge(seed: int) -> Fit:
        from sklearn.linear_model import Ridge

        model, seconds = _timed(Ridge(), windows(train), train.left)
        return Fit(judged(model.predict(windows(test))), seconds)

    def boosting(seed: int) -> Fit:
        from sklearn.ensemble import HistGradientBoostingRegressor

        made = HistGradientBoostingRegressor(max_iter=150, learning_rate=0.05, random_state=seed)
        model, seconds = _timed(made, windows(train), train.left)
        return Fit(judged(model.predict(windows(test))), seconds)

    def ours(params: Mapping[str, Any]) -> Callable[[int], Fit]:
        def fit(seed: int) -> Fit:
            from txl_ts.estimators.regressor import TXLRegressor

            begin = time.perf_counter()
            model = TXLRegressor(random_state=seed, **params).fit(train.X, train.left, series_id=train.unit)
            seconds = time.perf_counter() - begin
            said = model.predict(test.X, series_id=test.unit).astype(float)
            return Fit(judged(said), seconds, model.n_parameters_)

        return fit

    yield Contender("constant", constant, seeded=False)
    yield Contender("ridge, window features", ridge, seeded=False)
    yield Contender("boosted trees, window features", boosting)
    yield Contender("TXLRegressor", ours(REMAINING_LIFE))
    yield Contender("TXLRegressor, memory off", ours({**REMAINING_LIFE, "mem_len": 0}))


def windows(cycles: Engines) -> NDArray[np.float64]:
    """Last value, mean, deviation and slope of each sensor over the last rows, and how many these are."""
    out = np.empty((len(cycles.X), 4 * cycles.X.shape[1] + 1))
    first = 0
    for row in range(len(out)):
        if row and cycles.unit[row] != cycles.unit[row - 1]:
            first = row
        part = cycles.X[max(first, row - WINDOW + 1) : row + 1]
        mean, step = part.mean(axis=0), np.arange(len(part)) - (len(part) - 1) / 2
        slope = step @ (part - mean) / max(step @ step, 1)
        out[row] = np.concatenate([part[-1], mean, part.std(axis=0), slope, [len(part)]])
    return out


# -- judging ----------------------------------------------------------------------------------------------------------


def _accuracy(part: str, y: Any, said: Any, p: Any, *, classes: Any = (0, 1)) -> Verdict:
    loss = None
    if p is not None:
        right = np.asarray(p, float)[np.arange(len(y)), np.searchsorted(classes, y)]
        loss = float(-np.log(np.maximum(right, 1e-15)).mean())
    return Verdict(part, "accuracy", float((np.asarray(said) == y).mean()), loss)


def _timed(model: Any, X: Any, y: Any) -> tuple[Any, float]:
    begin = time.perf_counter()
    model.fit(X, y)
    return model, time.perf_counter() - begin
