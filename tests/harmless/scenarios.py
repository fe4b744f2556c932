from .harness import Scenario

SCENARIOS = (Scenario("environment.py", ranks=2, words=("--lr", "3e-4", "", "a b")),)
