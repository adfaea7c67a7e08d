"""Faults put into the program on purpose, each with the test that catches it."""
