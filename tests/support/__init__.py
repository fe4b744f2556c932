"""Provides builders that tests of several folders share. A fixture that starts a daemon is in tests/real instead."""

from pathlib import Path

# On PYTHONPATH it makes ranks light.
LIGHT = str(Path(__file__).with_name("light"))
