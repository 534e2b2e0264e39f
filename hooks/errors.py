"""What can go wrong in the hook, apart from OSError.

Refused      the container must not start; the message is the one line that says why
Untrusted    the run directory holds what someone else than the agent could have made
Unusable     nothing is staged that can be replayed
Changed      a source or the driver is no longer what the plan was made from
Unanswered   neither the agent nor the standalone planner gave an answer
"""


class Refused(Exception):
    """The container must not start."""


class Untrusted(Exception):
    """The run directory cannot be believed; this refuses the start."""


class Unusable(Exception):
    """Nothing staged fits; the agent is asked."""


class Changed(Exception):
    """The host moved on since the plan was staged; the agent is asked, once."""


class Unanswered(Exception):
    """Nobody could be asked; the next way is tried."""


def shown(data: bytes) -> str:
    """A path or word as messages show it; what is not UTF-8 is replaced."""
    return data.decode("utf-8", "replace")
