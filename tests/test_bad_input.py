"""Whatever a user brings (D1, D2 of the reliability page): a result or our own error, which changes nothing."""

import copy
import datetime as dt
import decimal
import hashlib
import warnings
import zoneinfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_ts import TXLForecaster
from txl_ts.errors import ColumnError, StampError, TxlError, TxlWarning

NAN, INF = float("nan"), float("inf")
HOUR = dt.timedelta(hours=1)
NEW_YORK, UTC = zoneinfo.ZoneInfo("America/New_York"), dt.UTC

VALUES = [
    NAN, INF, -INF, None, 0.0, -0.0, 5e-324, 1e-40, 1e30, 1e308, -1e308, 2**63 - 1, -(2**63), 2**64, 3, True,
    decimal.Decimal("1.5"), "3.5", "", b"1", 1 + 2j, [1.0], {"a": 1}, dt.timedelta(1), pd.NA, pd.NaT,
]  # fmt: skip
STAMPS = [
    None, pd.NaT, "2024-02-01", "noon", 0, 7, 1.5, NAN, -(2**63), 2**63 - 1, dt.date(2024, 2, 29),
    dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23), dt.datetime(1960, 2, 29, 1), dt.datetime(2262, 4, 11, 23),
    dt.datetime(2262, 4, 12), dt.datetime(1677, 9, 21), dt.datetime(2024, 2, 29, 12, 30),
    dt.datetime(2024, 7, 1, tzinfo=UTC),
    dt.datetime(2024, 11, 3, 1, tzinfo=NEW_YORK), dt.datetime(2024, 11, 3, 1, fold=1, tzinfo=NEW_YORK),
    dt.datetime(2024, 3, 10, 2, tzinfo=NEW_YORK), dt.datetime(2025, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5.5))),
]  # fmt: skip
IDS = [None, NAN, "", "T1", "new", "é", "a\x00b", "T1 ", 1, 2**63, 1.0, 1.5, True, b"T1", ("T1",), dt.date(2024, 1, 1)]
POOLS = {"unique_id": IDS, "ds": STAMPS, "y": VALUES}


def whole(values, kind):
    """A column of another kind."""
    if kind == "Int64":
        return pd.array([None if i % 3 == 0 else i for i in range(len(values))], dtype="Int64")
    if kind == "boolean":
        return pd.array([None if i % 3 == 0 else True for i in range(len(values))], dtype="boolean")
    if kind == "category":
        return pd.Categorical(values)
    if kind == "object":
        return np.array(values, object)
    if kind == "decimal":
        return [decimal.Decimal(i) for i in range(len(values))]
    if kind == "nothing":
        return [None] * len(values)
    return np.arange(len(values)).astype(kind)


KINDS = (
    "Int64", "boolean", "category", "object", "decimal", "nothing", "float16", "float32", "uint8", "uint64", "int64",
    "bool", "complex64", "datetime64[s]", "datetime64[ns]", "timedelta64[us]", "str",
)  # fmt: skip


@st.composite
def tables(draw, first=dt.datetime(2024, 3, 1)):
    """Good rows of some series, with a few things done to them."""
    names = draw(st.lists(st.sampled_from(["T1", "T2", "T3", "T11"]), min_size=1, max_size=3, unique=True))
    n = draw(st.integers(0, 5))
    columns = {
        "unique_id": [name for name in names for _ in range(n)],
        "ds": [first + i * HOUR for _ in names for i in range(n)],
        "y": [0.5 * i for i in range(n * len(names))],
    }
    for _ in range(draw(st.integers(0, 3))):
        column = draw(st.sampled_from(sorted(columns)))
        what = draw(
            st.sampled_from(["cell", "cell", "cell", "kind", "shuffle", "zone", "repeat", "shift", "drop", "extra"])
        )
        if what == "cell" and len(columns[column]):
            at = draw(st.integers(0, len(columns[column]) - 1))
            columns[column] = list(columns[column])
            columns[column][at] = draw(st.sampled_from(POOLS.get(column, VALUES)))
        elif what == "kind":
            kind = draw(st.sampled_from(KINDS))
            try:
                columns[column] = whole(columns[column], kind)
            except (TypeError, ValueError):
                continue
        elif what == "shuffle":
            columns[column] = draw(st.permutations(list(columns[column])))
        elif what == "zone":
            zone = draw(st.sampled_from([UTC, NEW_YORK]))
            columns["ds"] = [t.replace(tzinfo=zone) if isinstance(t, dt.datetime) else t for t in columns["ds"]]
        elif what == "repeat" and all(len(values) for values in columns.values()):
            columns = {name: [*values, list(values)[-1]] for name, values in columns.items()}
        elif what == "shift":
            by = draw(st.sampled_from([HOUR / 60, -1000 * HOUR, 50 * HOUR, 10**5 * HOUR, dt.timedelta(microseconds=1)]))
            columns["ds"] = [t + by if type(t) is dt.datetime and 1000 < t.year < 3000 else t for t in columns["ds"]]
        elif what == "drop" and len(columns) > 1:
            del columns[column]
            columns.setdefault("ds", [])
        elif what == "extra":
            columns["more"] = [object] * len(columns[column])
    return columns


def made(columns, library):
    """The frame, or None where the library itself does not make one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return library(columns)
    except Exception:  # noqa: BLE001 - whatever it says
        return None


def tried(call):
    """What a call gave, and our error; any other error goes on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TxlWarning)
        try:
            return call(), None
        except TxlError as error:
            return None, error


LIBRARIES = [pd.DataFrame, pl.DataFrame, pa.table]
CALLS = {
    "update": lambda model, df: model.update(df),
    "predict": lambda model, df: model.predict(df=df),
    "go on": lambda model, df: model.predict(df=df, start="fitted"),
    "backtest": lambda model, df: model.cross_validation(df, n_windows=1, h=1, use_fitted=True),
    "fitted values": lambda model, df: model.fitted_values(df),
    "future": lambda model, df: model.make_future_frame(df=df),
}


def digest(model):
    """Of all that a call might change."""
    fleet, what = model._fleet, hashlib.sha256()
    for array in (fleet.origins, fleet.last, fleet.forecast, fleet.static, *fleet.state.values()):
        what.update(np.ascontiguousarray(array))
    for tensor in model._model.state_dict().values():
        what.update(np.ascontiguousarray(tensor.numpy()))
    return what.hexdigest(), fleet.ids, sorted(vars(model))


def says_where(error):
    """Errors of columns and stamps name the column that they are about."""
    return any(f"'{name}'" in str(error) for name in ("unique_id", "ds", "y")) or not isinstance(
        error, (ColumnError, StampError)
    )


@settings(max_examples=2000)
@given(columns=tables(), library=st.sampled_from(LIBRARIES), call=st.sampled_from(sorted(CALLS)))
def test_a_call_gives_a_result_or_our_error_and_a_refusal_changes_nothing(fitted, columns, library, call):
    frame = made(columns, library)
    if frame is None:
        return
    model = copy.deepcopy(fitted)
    before = digest(model)
    out, error = tried(lambda: CALLS[call](model, frame))
    assert says_where(error), error
    if error is None:
        assert type(out) is type(frame)
    if error is not None or call != "update":
        assert digest(model) == before


@settings(max_examples=300)
@given(columns=tables(), library=st.sampled_from(LIBRARIES), freq=st.sampled_from(["auto", "1h", "1D", 1]))
def test_a_fit_gives_a_model_or_our_error(tiny, columns, library, freq):
    frame = made(columns, library)
    if frame is None:
        return
    model = TXLForecaster(**{**tiny, "max_epochs": 0, "freq": freq})
    _, error = tried(lambda: model.fit(frame))
    assert says_where(error), error
    if error is None:
        assert len(model.predict()) > 0
    else:
        assert not hasattr(model, "config_")
