"""The page in Chromium: as a reader meets it, with a mouse, with a keyboard, in the dark and on a phone."""

import pytest

from annattn.report import page, write_file
from annattn.report.page import percent

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(results, tmp_path_factory) -> str:
    return write_file(page(results), tmp_path_factory.mktemp("page") / "report.html").as_uri()


@pytest.fixture
def opened(browser, address):
    """Open the page; at the end, nothing may have gone wrong in it and nothing been asked of the network."""
    wrong: list[str] = []
    contexts = []

    def at(width: int = 1200, scheme: str = "light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: wrong.append(message.text))
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("request", lambda request: wrong.append(request.url) if request.url[:4] == "http" else None)
        tab.goto(address)
        return tab

    yield at
    for context in contexts:
        context.close()
    assert wrong == []


def picture(tab, name: str = "hashed") -> str:
    return tab.evaluate(
        f"[...document.querySelectorAll('#map-{name} .cell')].map((c) => c.getAttribute('opacity')).join()"
    )


def test_sliders_change_the_picture_and_the_error(opened, results):
    tab = opened()
    layer = results["attention"]["layers"][0]
    errors = results["models"]["models"][1]["layers"][0]["errors"]
    seen = set()
    for t, z in ((0, 0), (len(layer["tables"]) - 1, 0), (0, len(layer["hashes"]) - 1)):
        tab.locator("#lens-tables").fill(str(t))
        tab.locator("#lens-hashes").fill(str(z))
        assert tab.locator("#lens-tables-value").inner_text() == str(layer["tables"][t])
        assert tab.locator("#lens-hashes-value").inner_text() == str(layer["hashes"][z])
        shown = tab.locator("#lens-error").inner_text()
        assert shown == percent(errors[z][t]["mean"])
        assert tab.locator("#lens-distance").inner_text() == f"{layer['rows'][z]['cells'][t]['distance']:.2f}"
        seen.add(picture(tab))
        said = tab.locator("#strip .said").all_inner_texts()
        assert said == layer["rows"][z]["cells"][t]["said"]
    assert len(seen) == 3


def test_cells_are_painted_with_the_weights_of_the_results(opened, results):
    import base64

    tab = opened()
    layer = results["attention"]["layers"][0]
    tab.locator("#lens-tables").fill("2")
    tab.locator("#lens-hashes").fill("1")
    for name, packed in (
        ("hashed", layer["rows"][1]["cells"][2]["weights"]),
        ("expected", layer["rows"][1]["expected"]),
        ("softmax", layer["rows"][1]["softmax"]),
    ):
        shown = [float(opacity) for opacity in picture(tab, name).split(",")]
        assert shown == pytest.approx([(byte / 255) ** 0.5 for byte in base64.b64decode(packed)], abs=6e-4)


def test_layers_have_pictures_of_their_own(opened):
    tab = opened()
    first = picture(tab, "expected")
    tab.locator("#lens-layers input").nth(1).check()
    assert picture(tab, "expected") != first
    assert "layer 2" in tab.locator("#strip-title").inner_text()


def test_steps_go_through_the_rounds(opened, results):
    tab = opened()
    rounds = results["theory"]["rounds"]
    limit = results["theory"]["memory_words"]
    for at, one in enumerate(rounds):
        assert tab.locator("#round-value").inner_text() == f"{at + 1} of {len(rounds)}"
        assert one["stage"] in tab.locator("#round-stage").inner_text()
        heights = tab.evaluate(
            "[...document.querySelectorAll('#round-bars .received')].map((r) => +r.getAttribute('height'))"
        )
        full = 202.0  # what a machine at its limit is drawn with
        assert heights == pytest.approx([full * words / limit for words in one["received"]], abs=0.01)
        if at < len(rounds) - 1:
            tab.locator("#round-next").click()
    assert tab.locator("#round-next").is_disabled()
    tab.locator("#round-back").click()
    assert tab.locator("#round-value").inner_text() == f"{len(rounds) - 1} of {len(rounds)}"


def test_the_keyboard_alone_does_all_of_it(opened):
    tab = opened()
    reached = {}
    for _ in range(80):
        tab.keyboard.press("Tab")
        name = tab.evaluate("document.activeElement.id || document.activeElement.name || ''")
        if name and name not in reached:
            style = "getComputedStyle(document.activeElement)"
            reached[name] = tab.evaluate(f"{style}.outlineStyle + {style}.outlineWidth")
        if name in ("lens-tables", "round"):
            watched = "#lens-error" if name == "lens-tables" else "#round-value"
            seen = set()
            for key in ("End", "Home", "ArrowRight"):
                tab.keyboard.press(key)
                seen.add((tab.locator(watched).inner_text(), picture(tab)))
            assert len(seen) == 3
        if name == "unfold":
            tab.keyboard.press("Enter")
            assert tab.locator(".theorems details[open]").count() == tab.locator(".theorems tbody tr").count()
            break
    for name in ("theme", "lens-layer", "lens-tables", "lens-hashes", "lens-query", "round", "round-next", "unfold"):
        assert name in reached, name
        assert reached[name] not in ("none0px", "none3px"), name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dark_and_light_follow_the_system_and_the_button(opened, scheme):
    tab = opened(scheme=scheme)

    def brightness() -> float:
        colour = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(float(part) for part in colour.strip("rgb()").split(",")) / 3

    assert (brightness() > 128) == (scheme == "light")
    tab.locator("#theme").click()
    assert (brightness() > 128) == (scheme == "dark")


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_fits_the_screen(opened, width):
    tab = opened(width)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    small = tab.evaluate(
        "[...document.querySelectorAll('svg.chart')].filter((c) => c.getBoundingClientRect().width)"
        ".map((c) => 12.5 * c.getBoundingClientRect().width / c.viewBox.baseVal.width)"
    )
    assert min(small) > 9.5  # pixels of a chart's letters
    assert len(small) >= 4


def test_it_prints_in_light_colours_with_every_bound_unfolded(opened):
    tab = opened(scheme="dark")
    tab.emulate_media(media="print")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.locator("details:not([open])").count() == 0
    assert len(tab.pdf()) > 10_000
