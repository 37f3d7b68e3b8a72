"""Names given on a command line: known, or an error that suggests the nearest."""

import difflib
from collections.abc import Iterable

from annattn.errors import InputError

__all__ = ["known", "nearest"]


def known(what: str, name: str, names: Iterable[str], hint: str = "") -> str:
    """The name itself if it is one of `names`; `hint` is for a name that is near none of them.

    >>> known("recipe", "match2_paper", ["match2_paper", "match2_direct"])
    'match2_paper'
    """
    listed = list(names)
    if name in listed:
        return name
    raise InputError(what, given=repr(name), expected=f"one of {', '.join(listed)}", hint=nearest(name, listed) or hint)


def nearest(name: str, names: Iterable[str], likeness: float = 0.4) -> str:
    """A question after the name that may have been meant, or nothing if none is that much alike.

    >>> nearest("khop", ["KHop", "Sort"])
    'did you mean KHop?'
    """
    by_letters = {one.lower(): one for one in names}
    near = difflib.get_close_matches(name.lower(), by_letters, 1, likeness)
    return f"did you mean {by_letters[near[0]]}?" if near else ""
