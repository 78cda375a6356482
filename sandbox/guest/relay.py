"""What the host executes in the box to make a link: hands its own stdin and stdout to the guest, then waits.

Imports builtins only, so that it starts fast. It moves no byte of the link itself.
"""

import _socket
import sys

SOCKET_PATH = "/run/sandhog/guest.sock"


def main() -> None:
    """Pass descriptors 0 and 1 to the guest; return when the guest lets go of the link."""
    guest = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    guest.connect(SOCKET_PATH)
    fds = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1))
    guest.sendmsg([b"L"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
    guest.recv(1)


if __name__ == "__main__":
    main()
