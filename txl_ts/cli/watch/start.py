"""``txl-ts watch``, from its options to its exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from txl_ts.cli.watch.lines import Lines
from txl_ts.cli.watch.opened import open_watch
from txl_ts.cli.watch.run import Manner, Run, run, say, wait
from txl_ts.cli.watch.settings import ranges, read_settings
from txl_ts.cli.watch.sink import Sink
from txl_ts.cli.watch.source import open_source
from txl_ts.errors import ParameterError

_FREE = ("maintenance",)  # may be others after a restart


def run_watch(
    model: Path,
    data: Path | None,
    *,
    reading: Mapping[str, Any],
    settings: Path | None,
    options: Mapping[str, Any],
    guards: Sequence[str],
    out: Path | None,
    alerts: Path | None,
    follow: bool,
    state: Path | None,
    manner: Manner,
    with_metrics: bool,
) -> int:
    """Watch streams until their source ends.

    Parameters
    ----------
    model : Path
    data : Path or None
        None is standard input.
    reading : mapping
        Arguments of :class:`~txl_ts.cli.watch.lines.Lines`.
    settings : Path or None
        See :func:`~txl_ts.cli.watch.settings.read_settings`.
    options : mapping
        Settings that stand above those of the file.
    guards : sequence of str
        Ranges of sensors.
    out, alerts : Path or None
        Files to append to.
    follow : bool
    state : Path or None
        Folder of snapshots.
    manner : Manner
    with_metrics : bool

    Returns
    -------
    int
        Exit code.
    """
    if follow and data is None:
        raise ParameterError("--follow needs a file that grows: name it after the model. A pipe is read to its end.")
    if out is not None and alerts is not None and out.absolute() == alerts.absolute():
        raise ParameterError(f"--out and --alerts are both {str(out)!r}. Give rows and alerts a file each.")
    told = read_settings(settings, options)
    channels = dict(told.get("channels", {}))
    for name, span in ranges(guards).items():
        one = channels.get(name, {})
        channels[name] = {**one, **span} if isinstance(one, dict) else one  # what is none is told with the others
    if channels:
        told["channels"] = channels
    watch = open_watch(model, told)
    is_datetime = watch.model.contract.is_datetime  # type: ignore[attr-defined]
    lines = Lines(list(watch.intake.channels.values()), **reading, is_datetime=is_datetime, note=say)
    kept = {name: value for name, value in told.items() if name not in _FREE}
    with closing(open_source(data, follow=follow, wait=wait)) as source:
        one = Run(
            watch,
            lines,
            source,
            out=Sink(1) if out is None else Sink.open(out),
            alerts=None if alerts is None else Sink.open(alerts),
            folder=state,
            settings={**kept, **{name: value for name, value in reading.items() if value}},
            manner=manner,
            say=say,
        )
        return run(one, with_metrics=with_metrics)
