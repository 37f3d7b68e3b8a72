"""The runs on real text, by name."""

from dataclasses import replace

from annattn.experiments.text.model import FAR, TextConfig
from annattn.experiments.text.training import TextRecipe

__all__ = ["TEXT_RECIPES"]


_MODEL = TextConfig(dim=160, layers=4, heads=5, far_layer=2)


def _contenders(corpus: str) -> dict[str, TextRecipe]:
    """The same recipe with each kind of far head, and without windows: 1.4 million parameters, 1,024 bytes."""
    base = TextRecipe(corpus, model=_MODEL, steps=400, batch=3, length=1024)
    models = {far: replace(base.model, far=far) for far in FAR}
    models["anna_alone"] = replace(base.model, window=1)  # a byte's other heads see the byte itself
    found = {name: replace(base, model=model) for name, model in models.items()}
    found |= {f"{name}_linear": replace(found[name], linear=True) for name in ("anna", "latest_match")}
    return {f"{corpus}_{name}": recipe for name, recipe in found.items()}


_NEEDLE = TextRecipe(
    "enwik8",
    # Contexts of 12 bytes tell facts apart: «qwerty is » has ten. At a million bytes there are a thousand times as many
    # to meet by chance as in training, which takes more hashes; the true one is met in every table, so few tables do.
    model=TextConfig(dim=96, layers=2, grams=12, decay=0.9, value_dim=32, tables=4, hashes=60),
    steps=400,
    warmup=50,
    length=640,
    facts=6,
    weight=4.0,
)

TEXT_RECIPES: dict[str, TextRecipe] = {
    **_contenders("python"),
    **_contenders("enwik8"),
    "code": TextRecipe("python", model=_MODEL, steps=1500, batch=3, length=1024),
    "needle": _NEEDLE,
    "needle_latest": replace(_NEEDLE, model=replace(_NEEDLE.model, far="latest_match")),
    "needle_softmax": replace(_NEEDLE, model=replace(_NEEDLE.model, far="softmax")),
}
"""Every text recipe by the name that `annattn train` uses."""
