"""A simulated NVIDIA host: real files, libraries and device nodes made from a recorded host.

`build` writes a driver root that the agent, the hook and a container can use; the folders below
tests/hosts are the recordings. It refuses to touch anything outside the root it is given, and it
simulates no GPU: what a library or a node does when used is not its business.
"""

from contrib.simhost.record import Recording, SimHostError, load
from contrib.simhost.tree import SimHost, SimNode, build, remove

__all__ = ["Recording", "SimHost", "SimHostError", "SimNode", "build", "load", "remove"]
