"""Streams that are watched: rows step a model, each is scored by what was said before it, and alerts come once."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from txl_ts.config import check_choice, check_integer
from txl_ts.errors import ParameterError, StateError
from txl_ts.forms import check_form
from txl_ts.instants import read_duration, read_stamp, shown_stamp
from txl_ts.stream.alerts import ANOMALY, Alert, Alerts, Seen
from txl_ts.stream.alerts import FORM as ALERTS_FORM
from txl_ts.stream.intake import FORM as INTAKE_FORM
from txl_ts.stream.intake import Intake, cloned
from txl_ts.stream.row import Row
from txl_ts.stream.score import Score, Scorer, Surprise
from txl_ts.stream.statuses import DRIFT, MISSING, REFUSED, WARMING_UP, heaviest

REVISIONS = ("raise", "rewind")
StreamName = str | int
_ALERTS_KEPT, _SCORES_KEPT = 32, 256
_FORK = "\0"  # how the names of forks begin, and no stream's
_NOW = {
    "intake": INTAKE_FORM,
    "alerts": ALERTS_FORM,
    "ahead": ({"score": ..., "is_warming": bool}, None),
    "at": (int, None),
    "calibration": ...,
    "alarmed": {str: [float]},
    "kept_out": ([int], None),
}
_STREAM = {
    "now": _NOW,
    "epochs": [{"fork": str, "n_rows": int, "n": int, "now": _NOW}],
    "log": [{"time": int, "values": {str: object}}],
    "n_revisions": int,
    "said": [[int, str]],
}
FORM = {"names": [object], "streams": [_STREAM]}
"""Of the state, as :func:`txl_ts.forms.check_form` reads it."""


class Model(Protocol):
    """What a watch steps: a ``StreamSession`` of the runtime, or its torch twin."""

    @property
    def streams(self) -> Sequence[StreamName]:
        """Names of the streams that it knows."""
        ...

    def step(self, rows: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Take in rows by stream; results have ``quantiles``, ``levels`` and ``status``."""
        ...

    def reset(self, name: Any) -> None:
        """Empty the memory of a stream."""
        ...

    def copy(self, name: Any, new: Any) -> None:
        """Fork a stream."""
        ...

    def close(self, name: Any) -> None:
        """End a stream."""
        ...


class Calibration(Protocol):
    """From scores to p-values: ``txl_ts.calibration.Calibration``. Its state holds plain JSON and arrays."""

    @property
    def alpha(self) -> float:
        """A row with a p-value of at most this alarms."""
        ...

    def open(self) -> dict[str, Any]:
        """Give the state of a stream."""
        ...

    def step(self, score: float, state: Mapping[str, Any]) -> tuple[float, bool, dict[str, Any]]:
        """Give the p-value of a score, whether scores have drifted, and the new state."""
        ...

    def learn(self, scores: Iterable[float], state: Mapping[str, Any]) -> dict[str, Any]:
        """Take scores for normal ones; gives the new state."""
        ...

    def check(self, state: Any) -> None:
        """Raise StateError for the state of another calibration, ValueError for what is none."""
        ...


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A row of a stream, with what is said about it.

    Attributes
    ----------
    row : Row
        As the intake gave it.
    status : str
        The row's, or what the model and the calibration add: ``"warming_up"``, ``"drift"``.
    score : float
        Higher is more unusual. NaN if none can be given; the status says why. Never 0 in its place.
    p_value : float
        Share of normal rows that score at least as high; NaN without a score or a calibration.
    parts : dict of column to float
        Of the score.
    band : dict of column to (low, high)
        What was expected.
    alerts : tuple of Alert
        That began or ended with this row.
    revision : int
        How often the stream had been rewound before this row was given.
    """

    row: Row
    status: str
    score: float
    p_value: float
    parts: dict[str, float] = field(default_factory=dict)
    band: dict[str, tuple[float, float]] = field(default_factory=dict)
    alerts: tuple[Alert, ...] = ()
    revision: int = 0

    def to_json(self) -> dict[str, Any]:
        """Give a plain dictionary; NaN becomes None."""
        plain = {**self.row.to_json(), "status": self.status, "parts": self.parts, "band": self.band}
        numbers = {"score": self.score, "p_value": self.p_value}
        plain |= {name: None if math.isnan(value) else value for name, value in numbers.items()}
        return plain | {"alerts": [asdict(alert) for alert in self.alerts], "revision": self.revision}


class Watch:
    """Many named streams over one model.

    Every row is scored by the forecast that was made before it, then steps the model. All that is known beside the
    model's memories is one state per stream, of plain JSON and arrays (``to_state``, ``from_state``), which belongs to
    exactly that moment of the model.

    Parameters
    ----------
    intake : Intake
        How messages become rows; the same for all streams.
    model : object
        A ``StreamSession``, a ``LiveSession``, or what has their ``step``, ``reset``, ``copy``, ``close``, ``streams``.
        Its channels are the intake's columns.
    score : Scorer, optional
        See :class:`txl_ts.stream.score.Scorer`; by default a :class:`~txl_ts.stream.Surprise` one row ahead.
    calibration : object, optional
        Gives p-values and the level that alarms. Without it scores are given, and anomalies do not alert.
    alerts : Alerts, optional
        By default every kind alerts at once.
    protect_memory : bool or duration
        True: the model gets missing values instead of a row that alarms, so that its memory stays normal. A new level
        is then strange for ever; with a duration, such as ``"1h"``, it is so for the first hour of an episode: later
        rows enter the memory whether they alarm or not, until none has alarmed for as long.
    score_while_warming : bool
        False: no score while the model is warming up.
    on_revision : {"raise", "rewind"}
        What ``revise`` does. ``"rewind"`` keeps the state of every ``epoch_rows`` rows, as a fork of the stream in the
        model, for ``n_epochs`` of them, and the messages since the oldest.
    epoch_rows, n_epochs : int
        See ``on_revision``.

    Examples
    --------
    >>> from txl_ts.runtime import StreamSession  # doctest: +SKIP
    >>> watch = Watch(Intake(["flow"], tick="1min"), StreamSession("pump.onnx"))  # doctest: +SKIP
    >>> watch.step({"pump-7": [("flow", "2026-01-01T00:00", 3.5)]})["pump-7"]  # doctest: +SKIP
    """

    def __init__(
        self,
        intake: Intake,
        model: Model,
        *,
        score: Scorer | None = None,
        calibration: Calibration | None = None,
        alerts: Alerts | None = None,
        protect_memory: Any = False,
        score_while_warming: bool = False,
        on_revision: str = "raise",
        epoch_rows: int = 1000,
        n_epochs: int = 2,
    ) -> None:
        check_choice("on_revision", on_revision, REVISIONS)
        if protect_memory and calibration is None:
            raise ParameterError(f"protect_memory={protect_memory!r} needs a calibration: without one no row alarms.")
        if not isinstance(score_while_warming, bool):
            raise ParameterError(f"score_while_warming={score_while_warming!r:.60} must be True or False.")
        self.intake, self.model = intake, model
        self.score: Scorer = Surprise() if score is None else score
        self.calibration, self.alerts = calibration, Alerts() if alerts is None else alerts
        self.protect_memory, self.score_while_warming = bool(protect_memory), score_while_warming
        self.longest_kept_out = (
            None if isinstance(protect_memory, bool) else read_duration("protect_memory", protect_memory, at_least=1)
        )
        self.keeps_epochs = on_revision == "rewind"
        self.epoch_rows = check_integer("epoch_rows", epoch_rows, at_least=1)
        self.n_epochs = check_integer("n_epochs", n_epochs, at_least=1)
        self._streams: dict[StreamName, dict[str, Any]] = {}
        self._given_ids: dict[str, str] = {}  # of alerts by key, while a stream is walked again
        self._is_torn = False

    @property
    def streams(self) -> tuple[StreamName, ...]:
        """Names of the streams, in the order in which they began."""
        return tuple(self._streams)

    def counts(self, name: StreamName) -> dict[str, int]:
        """Count the rows of a stream by the intake's status, with its gaps, alerts and messages."""
        state = self._stream(name)
        intake = state["now"]["intake"]
        gaps = {key: intake["gap"][key] for key in ("n_bridged", "n_resets")}
        alerts = {"n_alerts": state["now"]["alerts"]["n"], "n_muted": state["now"]["alerts"]["n_muted"]}
        return {**intake["counts"], **gaps, **alerts, "n_messages": intake["n_messages"], "n_rows": intake["n_rows"]}

    # ---------------------------------------------------------------------------------------------------------- rows

    def step(self, messages: Mapping[StreamName, Iterable[Any]]) -> dict[StreamName, list[Watched]]:
        """Take in messages of any of the streams; names that are new begin by themselves.

        Parameters
        ----------
        messages : mapping of stream name to messages
            In the order in which they arrived; see :class:`Intake`.

        Returns
        -------
        dict of stream name to list of Watched

        Raises
        ------
        StampError, ColumnError, ParameterError
            If a message or a name cannot be used: then nothing of the call was.
        """
        if forks := [name for name in messages if isinstance(name, str) and name.startswith(_FORK)]:
            raise ParameterError(f"stream name {forks[0]!r:.60} begins with a null character. Give it another.")
        given = {name: list(one) for name, one in messages.items()}
        taken = {name: self.intake.step(one, self._now(name).get("intake")) for name, one in given.items()}
        if not self.keeps_epochs:
            return self._walk(taken)
        found: dict[StreamName, list[Watched]] = {}
        for name, one in given.items():
            found[name] = self._step_with_epochs(name, one)
        return found

    def flush(self, names: Iterable[StreamName] | None = None) -> dict[StreamName, list[Watched]]:
        """Give out what still waits, as at the end of a file."""
        names = self.streams if names is None else tuple(names)
        found = self._walk({name: self.intake.flush(self._stream(name)["now"]["intake"]) for name in names})
        for name in names if self.keeps_epochs else ():  # nothing is walked again across an end
            self._drop_epochs(name, n_left=0)
        return found

    def mute(self, name: StreamName, start: Any, end: Any, *, sensors: Iterable[str] | None = None) -> None:
        """Add a maintenance window to a stream."""
        stream = self._stream(name)
        for now in (stream["now"], *(epoch["now"] for epoch in stream["epochs"])):
            now["alerts"] = self.alerts.mute(start, end, now["alerts"], sensors=sensors)

    def feedback(self, name: StreamName, alert_id: str, *, false: bool) -> None:
        """Say whether an anomaly alert was false: then its scores count as normal from now on.

        Raises
        ------
        StateError
            If the alert is none of the last 32 anomalies of the stream, or there is no calibration.
        """
        now = self._stream(name)["now"]
        if alert_id not in now["alarmed"] or self.calibration is None:
            raise StateError(
                f"stream {name!r} keeps no scores of alert {alert_id!r}: known are {list(now['alarmed'])[-5:]}."
            )
        scores = now["alarmed"].pop(alert_id)
        if false:
            now["calibration"] = self.calibration.learn(scores, now["calibration"])

    def recalibrate(self, calibration: Calibration, *, score: Scorer | None = None) -> None:
        """Take another calibration for all streams, as after a retrain; what the old one learned is forgotten.

        Parameters
        ----------
        calibration : object
        score : Scorer, optional
            The new model's, if it scores in another way. What it cannot go on with is forgotten: the stream warms up.
        """
        self.calibration, self.score = calibration, self.score if score is None else score
        for stream in self._streams.values():
            for now in (stream["now"], *(epoch["now"] for epoch in stream["epochs"])):
                now.update(calibration=calibration.open(), alarmed={})
                try:
                    if now["ahead"] is not None:
                        self.score.check(now["ahead"]["score"], n_columns=len(self.intake.columns))
                except ValueError:
                    now["ahead"] = None

    def close(self, name: StreamName) -> None:
        """Forget a stream."""
        for fork in [name, *(epoch["fork"] for epoch in self._stream(name)["epochs"])]:
            if fork in self.model.streams:
                self.model.close(fork)
        del self._streams[name]

    def _now(self, name: StreamName) -> dict[str, Any]:
        now: dict[str, Any] = self._streams[name]["now"] if name in self._streams else {}
        return now

    def _stream(self, name: StreamName) -> dict[str, Any]:
        if name not in self._streams:
            raise StateError(
                f"there is no stream {name!r} ({len(self._streams)} in all): known are {list(self._streams)[:5]}."
            )
        return self._streams[name]

    def _open(self) -> dict[str, Any]:
        now: dict[str, Any] = {"intake": self.intake.open(), "alerts": self.alerts.open(), "ahead": None, "at": None}
        now["calibration"] = None if self.calibration is None else self.calibration.open()
        now["alarmed"] = {}  # alert id: scores of its rows that alarmed, for feedback
        now["kept_out"] = None  # first and last alarm of the episode, where a memory is protected
        return {"now": now, "epochs": [], "log": [], "n_revisions": 0, "said": []}

    def _walk(self, taken: Mapping[StreamName, tuple[list[Row], dict[str, Any]]]) -> dict[StreamName, list[Watched]]:
        """Step all streams together, row by row: one call of the model for each round."""
        if self._is_torn:
            raise StateError(
                "the model raised an error in an earlier call, after rows had been taken in: streams and memories no "
                "longer belong together. Go on from the last snapshot."
            )
        self._is_torn = True
        found: dict[StreamName, list[Watched]] = {name: [] for name in taken}
        for name, (_, intake) in taken.items():
            if name not in self._streams:
                self._streams[name] = self._open()
            self._streams[name]["now"]["intake"] = intake
        for turn in range(max((len(rows) for rows, _ in taken.values()), default=0)):
            due = {name: rows[turn] for name, (rows, _) in taken.items() if turn < len(rows)}
            inputs: dict[StreamName, dict[str, Any]] = {}
            for name, row in due.items():
                if row.is_reset:
                    self._forget(name)
                found[name].append(self._judged(name, row))
                if row.is_used:
                    is_kept_out = self._is_kept_out(name, row, found[name][-1].p_value)
                    values = dict.fromkeys(row.values) if is_kept_out else row.values
                    inputs[name] = {"time": row.stamp, "values": values}
            if inputs:
                for name, result in self.model.step(inputs).items():
                    self._note(name, result)
        self._is_torn = False
        return found

    def _forget(self, name: StreamName) -> None:
        if name in self.model.streams:
            self.model.reset(name)
        self._streams[name]["now"].update(ahead=None, kept_out=None)

    def _note(self, name: StreamName, result: Any) -> None:
        """Keep what was said about the next rows."""
        before = self._streams[name]["now"]["ahead"]  # what the row's score has left
        quantiles = np.asarray(result.quantiles, np.float32)
        quantiles = quantiles[:, None] if quantiles.ndim == 2 else quantiles
        self._streams[name]["now"]["ahead"] = {
            "score": self.score.note(quantiles, result.levels, before["score"]),
            # A result that says "missing" does not say whether it is warm.
            "is_warming": result.status == WARMING_UP or (result.status == MISSING and before["is_warming"]),
        }

    def _judged(self, name: StreamName, row: Row) -> Watched:
        """Say what there is to say about a row before the model sees it."""
        stream, now = self._streams[name], self._streams[name]["now"]
        score, p_value, statuses = Score(value=math.nan), math.nan, [row.status]
        ahead = now["ahead"]
        if row.is_used:
            now["at"] = row.stamp
            ahead = {"score": self.score.open(), "is_warming": True} if ahead is None else ahead
            is_warm = self._is_warm(ahead)
            statuses += [] if is_warm else [WARMING_UP]
            is_scored = is_warm or self.score_while_warming
            score, state = self.score.step(row.values, ahead["score"], is_warm=is_scored)
            now["ahead"] = {**ahead, "score": state}
        if self.calibration is not None and not math.isnan(score.value):
            p_value, has_drifted, now["calibration"] = self.calibration.step(score.value, now["calibration"])
            statuses += [DRIFT] if has_drifted else []
        seen = {} if now["at"] is None else self._seen(row, score, p_value, statuses)
        # A refused row is dated by its wrong clock: what it says is of the time of the stream.
        at = row.stamp if row.status not in REFUSED or now["at"] is None else now["at"]
        alerts: list[Alert] = []
        if row.is_reset:
            now["alerts"] = self.alerts.after_gap(now["alerts"])
        if seen:
            alerts, now["alerts"] = self.alerts.step(max(at, now["at"]), seen, now["alerts"], known=self._given_ids)
        if self._is_alarm(p_value):
            self._keep_for_feedback(now, score.value)
        return Watched(
            row=row,
            status=heaviest(statuses),
            score=score.value,
            p_value=p_value,
            parts=score.sensors,
            band=score.band,
            alerts=tuple(alerts),
            revision=stream["n_revisions"],
        )

    def _is_warm(self, ahead: Mapping[str, Any]) -> bool:
        if self.score.warm_rows is None:
            return not ahead["is_warming"]
        return bool(ahead["score"]["n"] >= self.score.warm_rows)

    def _seen(self, row: Row, score: Score, p_value: float, statuses: Sequence[str]) -> dict[str, Seen]:
        seen: dict[str, Seen] = {}
        is_refused = row.status in REFUSED
        for kind in self.alerts.rules:
            if kind == ANOMALY:
                if not is_refused and self.calibration is not None:
                    level = math.nan if math.isnan(p_value) else self.calibration.alpha / p_value
                    worst = sorted(score.sensors, key=lambda one: -score.sensors[one])
                    seen[kind] = Seen(level=level, sensors=tuple(worst), band=score.band, values=row.values)
            elif kind in REFUSED or not is_refused:  # a refused reading says nothing about the sensors
                sensors = tuple(tag for tag, status in row.channels.items() if status == kind)
                level = float(bool(sensors) or kind in statuses)
                if kind in REFUSED and is_refused and not level:
                    level = math.nan
                seen[kind] = Seen(level=level, sensors=sensors, values={tag: row.raw.get(tag) for tag in sensors})
        return seen

    def _keep_for_feedback(self, now: dict[str, Any], score: float) -> None:
        episode = now["alerts"]["kinds"].get(ANOMALY, {}).get("episode")
        if episode is not None:
            alarmed = dict(now["alarmed"])
            alarmed[episode["id"]] = [*alarmed.get(episode["id"], []), score][-_SCORES_KEPT:]
            now["alarmed"] = dict(list(alarmed.items())[-_ALERTS_KEPT:])

    def _is_kept_out(self, name: StreamName, row: Row, p_value: float) -> bool:
        """Whether the model must not see a row; notes how long that has been so."""
        if not (self.protect_memory and self._is_alarm(p_value)):
            return False
        longest, now = self.longest_kept_out, self._streams[name]["now"]
        if longest is None:
            return True
        # Alarms that are less than that apart are one episode: a row that looks right now and then does not begin anew.
        first, last = now["kept_out"] or (row.stamp, row.stamp)
        first = first if row.stamp - last < longest else row.stamp
        now["kept_out"] = [first, row.stamp]
        return bool(row.stamp - first < longest)

    def _is_alarm(self, p_value: float) -> bool:
        return self.calibration is not None and p_value <= self.calibration.alpha

    # ----------------------------------------------------------------------------------------------------- revisions

    def _step_with_epochs(self, name: StreamName, messages: Sequence[Any]) -> list[Watched]:
        """Take in messages one by one, so that an epoch begins at the same message in any split of them."""
        found: list[Watched] = []
        stream = self._streams.setdefault(name, self._open())
        for message in messages:
            n_rows = stream["now"]["intake"]["n_rows"]
            if not stream["epochs"] or n_rows - stream["epochs"][-1]["n_rows"] >= self.epoch_rows:
                self._begin_epoch(name)
            stream["log"].append(self._plain(message))
            new = self._walk({name: self.intake.step([message], stream["now"]["intake"])})[name]
            n = stream["now"]["intake"]["n_messages"]
            alerts = [alert for one in new for alert in one.alerts if alert.key not in self._given_ids]
            stream["said"] += [[n, f"{alert.key} {alert.id}"] for alert in alerts]
            found += new
        return found

    def _plain(self, message: Any) -> Any:
        zone = self.intake.zone
        if isinstance(message, Mapping):
            time, values = message.get("time"), message["values"]
        else:
            tag, time, value = message
            values = {} if tag is None else {tag: value}
        return {"time": read_stamp(time, zone=zone), "values": _finite(values)}

    def _begin_epoch(self, name: StreamName) -> None:
        stream = self._streams[name]
        now, epochs = stream["now"], stream["epochs"]
        fork = f"{_FORK}{name!r}@{now['intake']['n_messages']}"  # 7 and "7" are two streams
        if name in self.model.streams:
            if fork in self.model.streams:
                self.model.close(fork)
            self.model.copy(name, fork)
        epochs.append(
            {"fork": fork, "n_rows": now["intake"]["n_rows"], "n": now["intake"]["n_messages"], "now": cloned(now)}
        )
        self._drop_epochs(name, n_left=self.n_epochs)

    def _drop_epochs(self, name: StreamName, *, n_left: int) -> None:
        """Drop the oldest, with the messages and alerts from before those that are left."""
        stream = self._streams[name]
        epochs, n_now = stream["epochs"], stream["now"]["intake"]["n_messages"]
        while len(epochs) > n_left:
            old = epochs.pop(0)
            if old["fork"] in self.model.streams:
                self.model.close(old["fork"])
            first = epochs[0]["n"] if epochs else n_now
            del stream["log"][: first - old["n"]]
            stream["said"] = [one for one in stream["said"] if one[0] > first]

    def revise(self, name: StreamName, readings: Iterable[tuple[str, Any, Any]]) -> list[Watched]:
        """Correct readings that were taken in before: walk again from a retained epoch, as if they had come so.

        Parameters
        ----------
        readings : iterable of (tag, time, value)
            Each must be among the messages since the oldest epoch, and have been taken in.

        Returns
        -------
        list of Watched
            The rows since that epoch, again, with the same ``seq`` and a higher ``revision``. Alerts that had been
            given are not given again, and keep their ids.

        Raises
        ------
        StateError
            With ``on_revision="raise"``, or if a reading, or the memory from before it, is not among those that are
            kept. Nothing was changed.
        """
        stream = self._stream(name)
        if not self.keeps_epochs:
            raise StateError(
                f"stream {name!r}: revised values were given, but nothing is kept to walk again. "
                "Make the watch with on_revision='rewind'."
            )
        log, first = [cloned(message) for message in stream["log"]], len(stream["log"])
        readings = list(readings)
        if not readings:
            return []
        for tag, time, value in readings:
            first = min(first, self._corrected(log, tag, read_stamp(time, zone=self.intake.zone), value, name))
        oldest = stream["epochs"][0]["n"]
        epoch = max((e for e in stream["epochs"] if e["n"] - oldest <= first), key=lambda e: int(e["n"]))
        if epoch["now"]["ahead"] is not None and epoch["fork"] not in self.model.streams:
            raise StateError(
                f"stream {name!r}: the memory that was kept after {epoch['n_rows']} rows is no longer in the model, "
                "which closes streams that are idle, forks among them. Give its session a longer `idle`, or none."
            )
        self.intake.step(log[epoch["n"] - oldest :], epoch["now"]["intake"])  # what it refuses has changed nothing
        self._return_to(name, epoch)
        stream["log"], stream["n_revisions"] = log[: epoch["n"] - oldest], stream["n_revisions"] + 1
        keys = [text.rpartition(" ") for _, text in stream["said"]]
        self._given_ids = {key: alert_id for key, _, alert_id in keys}
        try:
            found = self._step_with_epochs(name, log[epoch["n"] - oldest :])
            return [_without(one, self._given_ids) for one in found]
        finally:
            self._given_ids = {}

    def _corrected(self, log: list[Any], tag: str, stamp: int, value: Any, name: StreamName) -> int:
        found = [i for i, message in enumerate(log) if message["time"] == stamp and tag in message["values"]]
        for i in found:
            if self._was_taken(log, i, tag, name):  # of a reading that came twice, one was
                log[i]["values"][tag] = _finite({tag: value})[tag]
                return i
        what = f"no reading of {tag!r}" if not found else f"only a reading of {tag!r} that was refused"
        raise StateError(
            f"stream {name!r}: there is {what} at {shown_stamp(stamp)} among the {len(log)} messages "
            f"that are kept. Keep more of them with epoch_rows and n_epochs, or walk the stream again from its source."
        )

    def _was_taken(self, log: list[Any], i: int, tag: str, name: StreamName) -> bool:
        _, before = self.intake.step(log[:i], self._streams[name]["epochs"][0]["now"]["intake"])
        rows, _ = self.intake.step([log[i]], before)
        return not any(row.status in REFUSED and row.stamp == log[i]["time"] and tag in row.raw for row in rows)

    def _return_to(self, name: StreamName, epoch: Mapping[str, Any]) -> None:
        stream = self._streams[name]
        if name in self.model.streams:
            self.model.close(name)
        if epoch["fork"] in self.model.streams:
            self.model.copy(epoch["fork"], name)
        for later in [one for one in stream["epochs"] if one["n"] > epoch["n"]]:
            if later["fork"] in self.model.streams:
                self.model.close(later["fork"])
            stream["epochs"].remove(later)
        n_alerts = stream["now"]["alerts"]["n"]  # a number that was given is not given to another
        stream["now"] = cloned(epoch["now"])
        stream["now"]["alerts"]["n"] = n_alerts

    # --------------------------------------------------------------------------------------------------------- state

    def to_state(self) -> dict[str, Any]:
        """Give all that is known beside the model's memories: plain JSON and arrays."""
        return {"names": list(self._streams), "streams": [cloned(one) for one in self._streams.values()]}

    def from_state(self, state: Mapping[str, Any]) -> None:
        """Put a state in place of all that is here; the model must stand where it stood.

        Raises
        ------
        StateError
            If it belongs to other channels, rules or calibrations, or is no state. Nothing was changed.
        """
        try:
            streams = self._checked(state)
        except ValueError as error:
            if isinstance(error, StateError):
                raise
            raise StateError(f"this is no state of a watch: {error}. Give what `to_state` gave.") from error
        self._streams, self._is_torn = streams, False

    def _checked(self, state: Mapping[str, Any]) -> dict[StreamName, dict[str, Any]]:
        """Copy a state, or raise StateError if it is another's, ValueError if it is none."""
        check_form(state, FORM, where="the state")
        names = state["names"]
        if any(type(name) not in (str, int) for name in names) or not len(set(names)) == len(names) == len(
            state["streams"]
        ):
            raise ValueError("its names are not distinct, or not as many as its streams")
        streams = {}
        for name, one in zip(names, state["streams"], strict=True):
            self.intake.step([], one["now"]["intake"])
            if set(one["now"]["alerts"]["kinds"]) != set(self.alerts.rules):
                raise StateError(
                    f"stream {name!r}: the state knows alerts of {sorted(one['now']['alerts']['kinds'])}, this "
                    f"watch those of {sorted(self.alerts.rules)}. Give the same rules."
                )
            if (one["now"]["calibration"] is None) != (self.calibration is None):
                raise StateError(
                    f"stream {name!r}: the state was made {'without' if self.calibration else 'with'} a calibration."
                )
            for now in (one["now"], *(epoch["now"] for epoch in one["epochs"])):
                if self.calibration is not None:
                    self.calibration.check(now["calibration"])
                if now["ahead"] is not None:
                    self.score.check(now["ahead"]["score"], n_columns=len(self.intake.columns))
            streams[name] = cloned(one)
        return streams


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    plain = {tag: value.item() if isinstance(value, np.generic) else value for tag, value in values.items()}
    return {t: None if isinstance(v, float) and not math.isfinite(v) else v for t, v in plain.items()}


def _without(one: Watched, said: Container[str]) -> Watched:
    alerts = tuple(alert for alert in one.alerts if alert.key not in said)
    return Watched(**{**{name: getattr(one, name) for name in one.__dataclass_fields__}, "alerts": alerts})
