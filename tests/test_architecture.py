"""The architecture page says what is there: its walks are those of real calls, and its files and functions exist."""

import re
import sys
from pathlib import Path

import pytest
import torch

import annattn as aa

PACKAGE = Path(aa.__file__).parent
PAGE = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text()


def walked(call) -> list[tuple[str, str]]:
    """Every function of the library that a call enters, in order: (file, qualified name)."""
    call()  # what happens once per process is no part of the walk
    seen: dict[tuple[str, str], None] = {}

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            seen.setdefault((str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return list(seen)


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # a profile sees one thread
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("is_causal", [False, True])
def test_an_attention_call_crosses_few_functions_in_few_files_and_the_page_lists_them(is_causal):
    query, key, value = torch.randn(3, 1, 4, 300, 16)
    hasher = aa.lsh.Hyperplane(16).sample(tables=4, hashes=6)
    walk = walked(lambda: aa.anna_attention(query, key, value, hasher, is_causal=is_causal))
    assert walk[0] == ("attention/anna.py", "anna_attention")
    # From Python 3.12 on a profile does not see what Numba compiled.
    seen = r"`([\w.]+)`" if sys.version_info < (3, 12) else r"`([\w.]+)`(?! \(compiled\))"
    assert walk[-1][0] == "kernels/numba/sums.py"
    assert len(walk) <= 25
    assert len({file for file, _ in walk}) <= 9
    section = PAGE.split("## One attention call")[1].split("##")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    listed = {(file.strip(" `"), name) for file, names in rows for name in re.findall(seen, names)}
    assert listed == {(file, name) for file, name in walk if "<locals>" not in name}


def test_every_file_and_function_on_the_page_exists():
    files = set(re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)*\.py)`", PAGE)) - {"state.py", "shapes.py"}
    assert len(files) > 25
    for file in files:
        assert (PACKAGE / file).is_file(), file
    for file, names in re.findall(r"`([a-z_0-9/]+\.py)`: ((?:`[\w.]+`(?:, | and )?)+)", PAGE):
        source = (PACKAGE / file).read_text()
        for name in re.findall(r"`([\w.]+)`", names):
            assert re.search(rf"\b(def|class) {name.split('.')[-1]}\b", source), f"{name} in {file}"


def test_every_folder_is_on_the_page():
    for folder in PACKAGE.iterdir():
        if folder.is_dir() and (folder / "__init__.py").exists():
            assert f"`{folder.name}/`" in PAGE, folder.name
