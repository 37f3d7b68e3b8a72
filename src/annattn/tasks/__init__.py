"""Synthetic tasks: labelled sequences with a brute force that says what the labels are. Needs no torch."""
