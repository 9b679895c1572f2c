"""The page of a report in a browser without a network: it is drawn, and its console is silent."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hpccoll.scaling.report import write_report
from hpccoll.scaling.study import SIMULATED
from tests.scaling.test_study import POINTS, STUDY

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason=f"there is no {' or '.join(BROWSERS)}"),
    pytest.mark.timeout(200),
]


def opened(page: Path, *arguments: str) -> tuple[str, list[str]]:
    """What the browser prints for a page, and what its console has; every host name is unknown to it."""
    assert BROWSER is not None
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        f"--user-data-dir={page.parent / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND",
        "--enable-logging=stderr", "--window-size=1000,4000", *arguments, page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_the_page_of_a_report(tmp_path: Path) -> None:
    image = pytest.importorskip(
        "matplotlib.image", reason="matplotlib is not installed (docs/dependencies.md)"
    )
    points = tuple(replace(one, used={"network out": 0.9, "NVLink": 0.2}) for one in POINTS)
    page = write_report(tmp_path, [STUDY, replace(STUDY, kind=SIMULATED, points=points)])
    picture = tmp_path / "screen.png"
    _, console = opened(page, f"--screenshot={picture}")
    assert console == []
    pixels = image.imread(picture)[:, :, :3]
    assert pixels.shape[:2] == (4000, 1000)
    # Each quarter of the page has lines in it, and nothing is cut off at the right side.
    dark = (pixels < 0.6).any(axis=2)
    assert all(part.sum() > 500 for part in (dark[:1000], dark[1000:2000], dark[2000:3000]))
    assert not dark[:, -10:].any()


def test_a_page_whose_console_is_not_silent_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<!DOCTYPE html><body><script>nothing.at.all()</script></body>")
    text, console = opened(page, "--dump-dom")
    assert "<script>" in text
    assert len(console) == 1
