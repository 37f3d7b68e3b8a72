"""Names given on a command line: known, or an error that suggests the nearest."""

import difflib
from collections.abc import Iterable

from annattn.errors import InputError

__all__ = ["known"]


def known(what: str, name: str, names: Iterable[str], hint: str = "") -> str:
    """The name itself if it is one of `names`; `hint` is for a name that is near none of them.

    >>> known("recipe", "match2_paper", ["match2_paper", "match2_direct"])
    'match2_paper'
    """
    listed = list(names)
    if name in listed:
        return name
    by_letters = {one.lower(): one for one in listed}
    near = difflib.get_close_matches(name.lower(), by_letters, 1, 0.4)
    hint = f"did you mean {by_letters[near[0]]}?" if near else hint
    raise InputError(what, given=repr(name), expected=f"one of {', '.join(listed)}", hint=hint)
