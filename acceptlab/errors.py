"""The two ways in which a command ends badly. Standard library only.

An error's message is one sentence that names the offending value and the remedy. `cli.main` prints it on stderr
and exits with `exit_code`; `--debug` shows the traceback.
"""


class AcceptlabError(Exception):
    """Base of every error that a user may see. Never raised itself."""

    exit_code = 1


class RunError(AcceptlabError):
    """A run or a check failed: a corrupt file, too little memory, a violated certificate (exit 1)."""

    exit_code = 1


class UsageError(AcceptlabError):
    """What was asked for cannot be done: a missing file, an unknown name, a refused pairing (exit 2)."""

    exit_code = 2
