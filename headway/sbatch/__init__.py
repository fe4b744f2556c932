"""Reads the sbatch scripts of other launchers, for `headway import sbatch`; pure.

In: the text of a script, and values of variables that it does not set.
Out: a TrainingJob as far as the script could be read, and a note with its line for everything else.
Start reading: `reading.py` (`read_script`), then `walk.py`, which goes through the script's statements.
"""

from headway.sbatch.notes import Note, NoteKind
from headway.sbatch.reading import Reading, read_script

__all__ = ["Note", "NoteKind", "Reading", "read_script"]
