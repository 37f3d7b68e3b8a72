"""Names that docstring examples use without importing them."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _names(doctest_namespace):
    doctest_namespace["torch"] = torch
