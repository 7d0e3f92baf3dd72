"""The command line, ``txl-ts``. typer, from the extra ``cli``, loads when a command runs."""

import io
import sys
from collections.abc import Sequence

from txl_ts.errors import MissingExtraError, TxlError

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> None:
    """Run ``txl-ts``; our own errors become one message on stderr.

    Parameters
    ----------
    args : sequence of str, optional
        What stands after ``txl-ts``. Default: the arguments of the process.

    Raises
    ------
    SystemExit
        Always, as programs end: 0 after success, 2 after an error of ours or of the arguments.
    """
    words = sys.argv[1:] if args is None else list(args)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a console without "°" shows a "?", and the run goes on
    try:
        _run(words)
    except TxlError as error:
        if "--traceback" in words:
            raise
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _run(words: list[str]) -> None:
    try:
        import typer
    except ModuleNotFoundError as error:
        raise MissingExtraError('txl-ts needs typer. Install it with `pip install "txl-ts[cli]"`.') from error
    from txl_ts.cli.program import app

    typer.main.get_command(app)(words, prog_name="txl-ts")
