"""The output of the verbs: text for a terminal, JSON and other formats for programs, SVG.

In: plans, problems, estimates, simulations. Out: text on a stream, or a string.
Start reading: `problems.py` (every verb that takes documents), `plan_text.py` (`headway plan`).
"""
