import os
import shutil
import signal

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.register_profile("fuzz", settings.get_profile("default"), max_examples=30, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs this way, and tests of Ctrl-C need it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _one_thread_per_worker():
    """Parallel test workers that each use every core would only slow each other down."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)


FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def _chromium() -> str:
    """The browser that CHROMIUM names, or the first one on the path; without one, a skip that says what to do."""
    names = (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium: `make browser` installs it, or set CHROMIUM to the path of Chromium or Chrome")
    return found


@pytest.fixture(scope="module")
def browser():
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        pytest.skip("Playwright is missing: pip install playwright (the `dev` extra)")
    chromium = _chromium()
    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=chromium, args=FLAGS)
        yield opened
        opened.close()
