"""Being asked to stop: Ctrl-C, a request to end and a closed terminal are one thing, KeyboardInterrupt."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

__all__ = ["between_steps", "stopped_by_signals"]


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """A request to end, or a terminal that is closed, raises what Ctrl-C does: everything is left tidy."""
    wanted = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # One that is ignored, as under nohup, stays ignored.
    with _handled([one for one in wanted if signal.getsignal(one) is signal.SIG_DFL], signal.default_int_handler):
        yield


@contextlib.contextmanager
def between_steps() -> Iterator[Callable[[], None]]:
    """Gives a function to call between two steps, which is where an interrupt takes effect: no step is cut in two."""
    asked = False

    def note(*_: object) -> None:
        nonlocal asked
        asked = True

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    wanted = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    with _handled([one for one in wanted if signal.getsignal(one) is signal.default_int_handler], note):
        yield check


@contextlib.contextmanager
def _handled(signals: list[signal.Signals], handler: Callable[..., object]) -> Iterator[None]:
    # Signals reach the main thread only, and only there may they be handled.
    mine = signals if threading.current_thread() is threading.main_thread() else []
    before = {one: signal.signal(one, handler) for one in mine}
    try:
        yield
    finally:
        for one, earlier in before.items():
            signal.signal(one, earlier)
