"""How frames become panels: the rows of a fit, and later rows with the columns that were fitted."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from txl_ts.config import ModelConfig, check_choice
from txl_ts.errors import CleanedDataWarning, ColumnError, ParameterError, StampError
from txl_ts.estimators.fitting import refuse_no_counts
from txl_ts.estimators.fleet import Fleet
from txl_ts.estimators.sizes import resolve_season, resolve_sizes
from txl_ts.frames import (
    Ahead,
    Asked,
    FrameStyle,
    Freq,
    Panel,
    Roles,
    after_ends,
    base_ids,
    check_calendar,
    check_column_names,
    check_targets,
    read_ahead,
    read_asked,
    read_long,
    read_wide,
    refuse_forecast_names,
    with_calendar,
    with_gaps,
    with_static,
    with_vocabulary,
)
from txl_ts.model import TXLModel


class ReadsFrames(BaseEstimator):
    """Part of :class:`TXLForecaster`: reads frames by its parameters, and by what was fitted."""

    freq: str | int | None
    season_length: Any
    calendar: str | Sequence[str] | None
    align: str
    max_gap: int | None
    on_bad_series: str
    channels: str

    # Set by fit and load; told here, since other methods read them.
    _model: TXLModel
    _fleet: Fleet
    _style: FrameStyle
    _freq: Freq
    _roles: Roles
    _targets: tuple[str, ...]
    _fitted_end: dict[str | int, int]  # last stamp that was trained on, of series that are kept no more too
    config_: ModelConfig

    if TYPE_CHECKING:

        def _check_fitted(self) -> None: ...

    def _read_first(
        self, df: Any, roles: Roles, static_df: Any, *, stacklevel: int = 3, **columns: Any
    ) -> tuple[Panel, Roles]:
        """Read rows to fit on; gives the roles with the calendar that fits their frequency."""
        panel = self._read(df, self.freq, gap=self.max_gap, warn_unused=True, beside=roles, **columns)
        calendar = check_calendar(self.calendar, freq=panel.freq)
        roles = replace(roles, calendar=calendar, is_uneven=panel.freq.is_uneven)
        reach = self._sizes(panel, roles)[0].reach
        if self.max_gap is None and panel.report.n_filled > reach:
            # The longest gap to bridge is the reach, which is known only now.
            panel = self._read(df, self.freq, gap=reach, beside=roles, **columns)
        if told := panel.report.changes():
            warnings.warn(f"{' '.join(told)} See cleaned_ and skipped_.", CleanedDataWarning, stacklevel=stacklevel)
        return self._completed(panel, roles, static_df, known={}), roles

    def _named_roles(self, df: Any, static_df: Any, names: dict[str, Any], **columns: Any) -> Roles:
        """Check the lists of columns of a call, and learn the categories of its frames."""
        targets = check_targets(names["target_col"]) or (names["target_col"],)
        check_column_names(**names | {"target_col": targets[0]})
        refuse_forecast_names(targets)
        roles = Roles.named(taken=[names["id_col"], names["time_col"], *targets], **columns)
        return with_vocabulary(roles, df=df, static_df=static_df)

    def _read_more(self, df: Any, static_df: Any = None, *, continues: bool, gap: int | None = None) -> Panel:
        """Read rows with all columns that were fitted."""
        panel = self._read_rows(df, continues=continues, beside=self._roles, gap=gap)
        if self.config_.distribution == "negative_binomial":
            refuse_no_counts(panel)
        known = dict(zip(base_ids(self._fleet.ids, self._name_targets, self._style), self._fleet.static, strict=True))
        return self._completed(panel, self._roles, static_df, known=known)

    def _read_judging(self, df: Any, static_df: Any) -> Panel:
        """Read rows that judge the weights: which of them were trained on is told by names and stamps."""
        panel = self._read_more(df, static_df, continues=False)
        self._refuse_other_kinds(panel, self._fitted_end)
        return panel

    def _read_rows(
        self, df: Any, *, continues: bool = False, beside: Roles | None = None, gap: int | None = None
    ) -> Panel:
        """Read rows with the target and the frequency that were fitted; no other column unless ``beside`` names it."""
        style = self._style
        panel = self._read(
            df,
            self._freq,
            gap=self._gap(self.config_) if gap is None else gap,
            origins=self._fleet.known_origins() if continues else None,
            zone=style.zone,
            id_col=style.id_col,
            time_col=style.time_col,
            target_col=list(self._targets) or style.target_col,
            beside=beside,
        )
        if continues:
            self._refuse_other_kinds(panel, self._fleet.ids)
            if self._freq.is_uneven:
                ends, seen = self._ends(panel)
                panel = after_ends(panel, ends=ends, seen=seen)
        # What align moves has been said by fit; a series that is left out is news.
        if panel.skipped:
            left_out = ", ".join(f"{name!r} ({reason})" for name, reason in panel.skipped[:5])
            warnings.warn(f"{len(panel.skipped)} series were skipped: {left_out}.", CleanedDataWarning, stacklevel=3)
        return panel

    def _read(
        self,
        df: Any,
        freq: str | int | Freq | None,
        *,
        target_col: str | Sequence[str],
        gap: int | None,
        origins: Any = None,
        beside: Roles | None = None,
        zone: str | None = None,
        warn_unused: bool = False,
        **columns: Any,
    ) -> Panel:
        targets = check_targets(target_col)
        if targets and (freq is None or (isinstance(freq, Freq) and freq.is_uneven)):
            raise ParameterError(
                f"freq=None (uneven time) takes one target column, got {list(targets)}. Melt the frame into a long "
                "one, with a series per id and target: each then has rows where it has values."
            )
        read: Any = read_wide if targets else read_long
        return read(
            df,
            **columns,
            **({"targets": targets, "is_mixed": self._mixes(targets)} if targets else {"target_col": target_col}),
            freq=freq,
            align=self.align,
            max_gap=gap,
            on_bad_series=self.on_bad_series,
            origins=origins,
            beside=beside,
            zone=zone,
            warn_unused=warn_unused,
            warn_cleaned=False,
        )

    def _completed(self, panel: Panel, roles: Roles, static_df: Any, *, known: dict[Any, Any]) -> Panel:
        """Add what is not in the rows: the calendar, the time between rows, and the static columns."""
        ids = base_ids(panel.ids, panel.name_targets, panel.style)
        panel = with_calendar(panel, roles)
        if roles.is_uneven:
            ends = self._ends(panel)[0] if panel.first_ordinals().any() else None
            panel = with_gaps(panel, max_gap=self.max_gap, ends=ends)
        return with_static(panel, static_df, roles, known=known, ids=ids)

    def _ends(self, panel: Panel) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Stamp of the last row that was taken in of each series of a panel, and whether there is one."""
        stamps = dict(zip(self._fleet.ids, self._last_stamps().tolist(), strict=True))
        seen = {name for name, last in zip(self._fleet.ids, self._fleet.last.tolist(), strict=True) if last >= 0}
        ends = np.array([stamps.get(name, 0) for name in panel.ids], np.int64)
        return ends, np.array([name in seen for name in panel.ids], bool)

    def _refuse_other_kinds(self, panel: Panel, names: Iterable[str | int]) -> None:
        """Raise unless ids and stamps are of the kinds of the series that are named: they would be taken for others."""
        old, new = self._style, panel.style
        if (old.zone is None) != (new.zone is None):
            raise StampError(
                f"time column {old.time_col!r} was fitted {_zone_text(old)} and now comes {_zone_text(new)}. Nothing "
                "was changed. Give the rows the zone that was fitted: dt.tz_localize, or dt.replace_time_zone."
            )
        known = {type(name) for name in base_ids(list(names), self._name_targets, old)}
        got = {type(name) for name in base_ids(panel.ids, panel.name_targets, new)}
        if known and got - known:
            kinds = ["/".join(sorted(kind.__name__ for kind in some)) for some in (known, got)]
            raise ColumnError(
                f"id column {old.id_col!r} was fitted with {kinds[0]} names and now holds {kinds[1]}, such as "
                f"{panel.ids[0]!r}. Nothing was changed. Cast the column to {kinds[0]}."
            )

    def _known_ahead(
        self, fleet: Fleet, n: int, style: FrameStyle, futr_df: Any, *, on_missing: str
    ) -> NDArray[np.float32]:
        """Read what is known of the next ``n`` rows of each series, (n_series, n, n_futr)."""
        parts = []
        for rows, lanes, where in self._rows_ahead(fleet, n, style):
            parts.append((lanes, self._read_ahead(rows, futr_df, on_missing=on_missing)[where]))
        order = np.concatenate([lanes for lanes, _ in parts])
        return np.concatenate([known for _, known in parts])[order.argsort()]

    def _read_ahead(self, rows: Ahead, futr_df: Any, *, on_missing: str) -> NDArray[np.float32]:
        check_choice("on_missing", on_missing, ("raise", "mask"))
        how: Any = {"mask_missing": on_missing == "mask", "nearest": self.align == "nearest"}
        return read_ahead(rows, futr_df, self._roles, **how)

    def _asked_ahead(
        self, fleet: Fleet, style: FrameStyle, futr_df: Any, *, on_missing: str
    ) -> tuple[Fleet, Asked, NDArray[np.float32]]:
        """Read the times that a frame asks for, where time is uneven; gives the series that it names, and no others."""
        rows = read_asked(fleet.ahead(1, freq=self._freq, style=style), futr_df)
        assert rows.asked is not None
        return fleet.take(rows.ids), rows.asked, self._read_ahead(rows, futr_df, on_missing=on_missing)

    def _rows_ahead(
        self, fleet: Fleet, n: int, style: FrameStyle
    ) -> list[tuple[Ahead, NDArray[np.int64], NDArray[np.int64]]]:
        """Rows ahead of the ids of the frame; series whose they are, and the position of each one's id among them.

        Once for all series; targets of one id that end at different rows, since one was left out, take turns.
        """
        names = base_ids(fleet.ids, self._name_targets, style)
        ends = list(zip(fleet.origins.tolist(), fleet.last.tolist(), strict=True))
        turns: list[tuple[Ahead, NDArray[np.int64], NDArray[np.int64]]] = []
        rest = list(range(len(fleet)))
        while rest or not turns:
            first: dict[str | int, int] = {}
            for lane in rest:
                first.setdefault(names[lane], lane)
            lanes = np.array([lane for lane in rest if ends[lane] == ends[first[names[lane]]]], np.int64)
            where = {name: i for i, name in enumerate(first)}
            chosen = np.array(list(first.values()), np.int64)
            rows = Ahead(tuple(first), fleet.origins[chosen], fleet.last[chosen], n, self._freq, style)
            turns.append((rows, lanes, np.array([where[names[lane]] for lane in lanes], np.int64)))
            rest = [lane for lane in rest if ends[lane] != ends[first[names[lane]]]]
        return turns

    def _refuse_unknown(self, call: str, *, n_fed: int) -> None:
        """Raise where a forecast would feed itself rows whose columns nobody knows."""
        if n_fed > 0 and self._roles.hist and not self._freq.is_uneven:
            raise ParameterError(
                f"{call} would continue the forecast over rows whose hist_cols {list(self._roles.hist)} are not known. "
                "Fit with a larger h, or name those columns in futr_cols and give them ahead."
            )

    def _taken(self, fleet: Fleet, ids: Sequence[str | int] | None) -> Fleet:
        """Keep some ids of the frame, with all their targets."""
        return fleet if ids is None else fleet.take(self._lanes_of(ids))

    def _lanes_of(self, ids: Sequence[str | int]) -> list[str | int]:
        """Names of the series of some ids of the frame: one, or one per target."""
        if isinstance(ids, str | int):
            raise ParameterError(f"ids={ids!r} must be a list, such as ids=[{ids!r}].")
        targets, known = self._name_targets, set(self._fleet.ids)
        if not targets:
            return list(ids)
        lanes = {name: [f"{name}/{target}" for target in targets] for name in ids}
        # A target that was left out has no series; an id without any is not known at all, under every name.
        return [lane for some in lanes.values() for lane in [one for one in some if one in known] or some]

    def _mixes(self, targets: Sequence[str]) -> bool:
        """Whether the targets of an id are channels of one series."""
        return self.channels == "mixed" and len(targets) > 1

    @property
    def _name_targets(self) -> tuple[str, ...]:
        """Targets that are part of the names of series."""
        return () if self._mixes(self._targets) else self._targets

    def _base_names(self) -> list[str | int]:
        """Ids of the frame behind each kept series."""
        return base_ids(self._fleet.ids, self._name_targets, self._style)

    def _gap(self, config: ModelConfig) -> int | None:
        """Longest gap that does not begin a series anew; where time is uneven a gap is a distance like any other."""
        return config.reach if self.max_gap is None and not config.is_uneven else self.max_gap

    def _sizes(self, panel: Panel, roles: Roles) -> tuple[ModelConfig, int]:
        """Sizes and season for these rows."""
        typical = int(np.median(panel.series_rows()))
        season = resolve_season(self.season_length, freq=panel.freq)
        how: Any = {"freq": panel.freq, "season": season, "typical_length": typical, "beside": roles}
        how["n_channels"] = panel.n_lanes_per_series
        return resolve_sizes(self.get_params(), **how), season

    def _last_stamps(self) -> NDArray[np.int64]:
        fleet = self._fleet
        return fleet.stamps(np.arange(len(fleet)), fleet.last, freq=self._freq, zone=self._style.zone)


def _zone_text(style: FrameStyle) -> str:
    return "without a zone" if style.zone is None else f"with zone {style.zone}"
