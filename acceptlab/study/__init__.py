"""A study: a question, a prediction written first, and the collections and analyses that answer it, in one TOML file.

`load_study` reads and checks the file, `run_study` does what is not done yet.
"""

from __future__ import annotations

from acceptlab.study.execute import Done, run_folder, run_study, state_of
from acceptlab.study.spec import STUDIES_FOLDER, Analyze, Collect, Study, find_studies, load_study

__all__ = [
    "STUDIES_FOLDER",
    "Analyze",
    "Collect",
    "Done",
    "Study",
    "find_studies",
    "load_study",
    "run_folder",
    "run_study",
    "state_of",
]
