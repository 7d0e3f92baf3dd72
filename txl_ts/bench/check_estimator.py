"""scikit-learn's ``check_estimator`` over our estimators: the report, one column per version of scikit-learn.

It runs in an environment per version and adds its own column to the report that is there:

    python -m txl_ts.bench.check_estimator --out benchmarks/results
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from txl_ts.bench import report

# The two checks that contradict a memory, and why.
CONTRADICTS_A_MEMORY: Mapping[str, str] = MappingProxyType(
    {
        "check_methods_sample_order_invariance": (
            "permutes the rows of one series: an answer depends on the rows before its own"
        ),
        "check_methods_subset_invariance": (
            "cuts one series into parts that each start with an empty memory: an answer depends on the rows before"
        ),
    }
)
# Two more of an outlier detector.
CONTRADICTS_A_BUDGET: Mapping[str, str] = MappingProxyType(
    {
        "check_outliers_train": (
            "wants outliers among the rows of fit: the budget is for new rows, by the scores of held-out ones, and a "
            "row without a score has no decision"
        ),
        "check_outliers_fit_predict": "wants a share of the rows of fit to be outliers: the budget is for new rows",
    }
)
NAME = "check_estimator"


def run_checks() -> dict[str, Any]:
    """Run all checks with the installed scikit-learn.

    Returns
    -------
    dict
        ``version``, and per estimator ``passed``, ``skipped``, ``expected`` (names), ``failed`` (names) and seconds.
    """
    import sklearn
    from sklearn.utils.estimator_checks import check_estimator

    from txl_ts.estimators import TXLAnomalyDetector, TXLClassifier, TXLEncoder, TXLRegressor

    found: dict[str, Any] = {"version": sklearn.__version__, "estimators": {}}
    for estimator in (TXLClassifier(), TXLRegressor(), TXLEncoder(), TXLAnomalyDetector()):
        begin = time.perf_counter()
        expected = dict(CONTRADICTS_A_MEMORY)
        expected |= CONTRADICTS_A_BUDGET if isinstance(estimator, TXLAnomalyDetector) else {}
        results = check_estimator(estimator, expected_failed_checks=expected, on_skip=None, on_fail=None)
        by_status: dict[str, list[str]] = {"passed": [], "skipped": [], "xfail": [], "failed": []}
        for result in results:
            by_status[result["status"]].append(result["check_name"])
        found["estimators"][type(estimator).__name__] = {
            "passed": len(by_status["passed"]),
            "skipped": sorted(set(by_status["skipped"])),
            "expected": sorted(set(by_status["xfail"])),
            "failed": sorted(set(by_status["failed"])),
            "seconds": time.perf_counter() - begin,
        }
    return found


def table(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Lay out the reports of several versions.

    Parameters
    ----------
    found : mapping of version to what :func:`run_checks` gave

    Returns
    -------
    dict
        A table of :mod:`txl_ts.bench.report`.
    """
    rows = [
        {
            "sklearn": version,
            "estimator": name,
            "passed": result["passed"],
            "expected": ", ".join(result["expected"]) or "none",
            "skipped": ", ".join(result["skipped"]) or "none",
            "failed": ", ".join(result["failed"]) or "none",
        }
        for version in sorted(found)
        for name, result in found[version]["estimators"].items()
    ]
    return {
        "name": NAME,
        "title": "scikit-learn's check_estimator",
        "command": "python -m txl_ts.bench.check_estimator --out benchmarks/results",
        "protocol": [
            "Every check of scikit-learn's `check_estimator`, estimators as shipped (no parameter set).",
            "The command runs once in an environment per version and adds its rows; versions of other libraries below "
            "are those of the last run.",
        ],
        "columns": {
            "sklearn": "scikit-learn",
            "estimator": "estimator",
            "passed": "passed",
            "expected": "expected to fail",
            "skipped": "skipped by scikit-learn",
            "failed": "failed",
        },
        "rows": rows,
        "reports": dict(found),
        "notes": [
            f"`{name}` {why}. With one series per row and `deterministic=True` it passes."
            for name, why in CONTRADICTS_A_MEMORY.items()
        ]
        + [f"`{name}` {why}." for name, why in CONTRADICTS_A_BUDGET.items()],
        "environment": report.environment(),
    }


def main() -> None:
    """Run, add the rows of this version to the report, and write it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    out = parser.parse_args().out
    known = out / f"{NAME}.json"
    before = json.loads(known.read_text(encoding="utf-8"))["reports"] if known.is_file() else {}
    here = run_checks()
    written = table(before | {here["version"]: here})
    report.write(written, out=out)
    print(report.markdown(written))


if __name__ == "__main__":
    main()
