"""Language models on real text: window and one far head, trained on bytes; what they recall, and how far back."""

from annattn.experiments.text.bits import Bits, bits_of, recall_hits
from annattn.experiments.text.model import TextConfig, TextModel, TextState
from annattn.experiments.text.needles import Answers, Haystack, ask
from annattn.experiments.text.recipes import TEXT_RECIPES
from annattn.experiments.text.training import TextRecipe, load_text_model, save_text_model, train_text

__all__ = [
    "TEXT_RECIPES",
    "Answers",
    "Bits",
    "Haystack",
    "TextConfig",
    "TextModel",
    "TextRecipe",
    "TextState",
    "ask",
    "bits_of",
    "load_text_model",
    "recall_hits",
    "save_text_model",
    "train_text",
]
