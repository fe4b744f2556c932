"""What a message calls a command that failed on a host."""

from headway.infra.ssh import _title


def test_a_script_is_called_by_its_title_and_its_arguments() -> None:
    assert _title(["sh", "-c", "set -e; rmdir ...", "remove folders", "a", "b c"]) == "sh 'remove folders' a 'b c'"


def test_any_other_command_is_called_as_it_is_up_to_four_words() -> None:
    assert _title(["systemctl", "restart", "a", "b", "c"]) == "systemctl restart a b"
    assert _title(["sh", "x.sh", "-c"]) == "sh x.sh -c"
