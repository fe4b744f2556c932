"""Builders that tests of several folders share. A fixture that starts a daemon is in tests/real instead."""
