"""Real text: corpora from the package index and from Python itself, packed into one file each. Nothing at import."""

from annattn.data.corpora import CORPORA, Corpus
from annattn.data.fetching import Arrived, fetch, standard_library
from annattn.data.text import Text, data_folder, load

__all__ = ["CORPORA", "Arrived", "Corpus", "Text", "data_folder", "fetch", "load", "standard_library"]
