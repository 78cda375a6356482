"""What the host executes in the box to make a link: hands its own stdin and stdout to the guest, then waits.

Imports builtins only, so that it starts fast. It moves no byte of the link itself.
"""

import _socket
import sys
import time

SOCKET_PATH = "/run/sandhog/guest.sock"
WAIT_S = 5.0
PAUSE_S = 0.005


def main() -> None:
    """Pass descriptors 0 and 1 to the guest; return when the guest lets go of the link."""
    guest = _reached()
    fds = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1))
    guest.sendmsg([b"L"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
    guest.recv(1)
    guest.close()


def _reached() -> _socket.socket:
    """Return a connection to the guest. One that only just starts is waited for: another relay would cost more."""
    deadline = time.monotonic() + WAIT_S
    while True:
        guest = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            guest.connect(SOCKET_PATH)
        except OSError:
            guest.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)
        else:
            return guest


if __name__ == "__main__":
    main()
