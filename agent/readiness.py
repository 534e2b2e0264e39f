"""Tell a service manager how the agent is (sd_notify's protocol, a datagram of text)."""

from __future__ import annotations

import os
import socket

VARIABLE = "NOTIFY_SOCKET"


def notify(state: str) -> None:
    """Send `READY=1`, `STOPPING=1` or the like; without a manager, or if it is gone, nothing."""
    address = os.environ.get(VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as client:
        # The event loop waits for nobody, not for a manager that does not read either.
        client.setblocking(False)
        try:
            client.sendto(state.encode(), address)
        except OSError:
            # Whether the manager hears it changes nothing in what the agent does.
            return
