"""A message names a command that failed on a host."""

from headway.infra.ssh import _title


def test_script_is_named_by_its_title_and_arguments() -> None:
    assert _title(["sh", "-c", "set -e; rmdir ...", "remove folders", "a", "b c"]) == "sh 'remove folders' a 'b c'"


def test_other_command_is_named_by_its_first_four_words() -> None:
    assert _title(["systemctl", "restart", "a", "b", "c"]) == "systemctl restart a b"
    assert _title(["sh", "x.sh", "-c"]) == "sh x.sh -c"
