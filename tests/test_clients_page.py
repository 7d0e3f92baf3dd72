"""The page of examples/browser, in headless Chromium: every number that it computes, and what can be seen."""

import functools
import http.server
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from txl_ts.bench.clients import prepare
from txl_ts.errors import MissingExtraError

pytestmark = pytest.mark.clients

ROOT = Path(__file__).parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
N_ROWS = 400


@pytest.fixture(scope="session")
def browser():
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    pytest.skip(f"none of {', '.join(BROWSERS)} is installed")


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The page as build.py makes it, from fewer rows."""
    for package in ("bokeh_sampledata", "onnxscript"):
        pytest.importorskip(package, reason="the page needs the extra `demo`")
    environments = os.environ.get("TXL_TS_CLIENTS") or tmp_path_factory.mktemp("environments")
    try:
        client = prepare("ONNX Runtime, WebAssembly", environments=environments, examples=ROOT / "examples" / "clients")
    except MissingExtraError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("page") / "site"
    npm = Path(client.command[1]).parent / "node_modules"
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "browser" / "build.py"), str(folder)]
    done = subprocess.run(
        [*command, "--rows", str(N_ROWS), "--past", "1500", "--npm", str(npm)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the folder, and keeps what the page reports."""

    def do_POST(self):
        self.server.reports.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args):
        """Say nothing."""


@pytest.fixture(scope="session")
def served(site):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(site))) as server:
        server.reports = queue.Queue()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def command(browser, profile, *args):
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
    return [browser, *flags, "--window-size=1120,820", f"--user-data-dir={profile}", *args]


def address(server, query):
    return f"http://127.0.0.1:{server.server_address[1]}/index.html?{query}"


@pytest.fixture(scope="session")
def report(browser, served, tmp_path_factory):
    """What the page says of itself after the last row, in a browser whose clock runs."""
    profile = tmp_path_factory.mktemp("profile")
    line = command(browser, profile, "--remote-debugging-port=0", address(served, "speed=max&report"))
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            return served.reports.get(timeout=120)
        finally:
            process.terminate()


def test_the_page_replays_the_whole_stream_and_gives_pythons_numbers(report):
    assert report.get("trouble") is None
    assert report["rows"] == N_ROWS
    assert report["largest_difference"] <= 1e-5
    assert report["graph_rows_per_s"] > 0  # shown, not judged: it is the machine's


def test_the_page_scores_the_values_that_came(report, site):
    values = json.loads((site / "stream.json").read_text(encoding="utf-8"))["values"]
    came = sum(value is not None for value in values[1:])
    assert came - 5 <= report["scored"] <= came  # none before the first forecast


def test_a_page_that_is_given_other_numbers_says_so(browser, served, site, tmp_path, report):
    """The comparison can fail: one of Python's numbers is changed."""
    expected = np.fromfile(site / "expected.bin", "<f4")
    other = expected.copy()
    other[-1] *= 1.01
    other.tofile(site / "expected.bin")
    line = command(browser, tmp_path, "--remote-debugging-port=0", address(served, "speed=max&report"))
    try:
        with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                found = served.reports.get(timeout=120)
            finally:
                process.terminate()
    finally:
        expected.tofile(site / "expected.bin")
    assert found["largest_difference"] > 1e-4


def test_the_page_shows_value_band_forecast_and_surprise(browser, served, tmp_path):
    image = pytest.importorskip("matplotlib.image", reason="the extra `demo` is not installed")
    picture = tmp_path / "page.png"
    line = command(browser, tmp_path / "profile", "--virtual-time-budget=60000", f"--screenshot={picture}")
    done = subprocess.run([*line, address(served, "speed=max")], capture_output=True, timeout=120, check=False)
    assert picture.is_file(), done.stderr[-1000:]
    pixels = (image.imread(picture)[..., :3] * 255).round().astype(int)

    def n_near(colour):
        return int((np.abs(pixels - np.array(colour)).max(axis=-1) <= 3).sum())

    assert pixels.shape[0] > 700
    assert n_near((29, 39, 51)) > 1000  # ink: the values, and text
    assert n_near((220, 230, 241)) > 3000  # the band that was said an hour before
    assert n_near((243, 214, 184)) > 300  # the band to come
    assert n_near((192, 52, 29)) > 100  # surprises outside the band
