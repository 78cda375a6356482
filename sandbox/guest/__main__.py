"""Start of the guest, a child of the spawner: open the socket as root, take the agent's rights, serve."""

import os
import socket
import sys

from sandbox.guest.server import Server
from sandbox.wire import SOCKET_PATH


def take_rights_of(uid: int, gid: int) -> None:
    """Do all further work with the agent's rights.

    The real and the saved user stay root: the agent can neither signal nor trace this process, while this process
    can signal the agent's.
    """
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(0, uid, 0)


def listen() -> socket.socket:
    """The socket that relays come to; its directory is open to root only."""
    if os.path.exists(SOCKET_PATH):
        os.unlink(SOCKET_PATH)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(SOCKET_PATH)
    listener.listen(8)
    return listener


def main() -> None:
    """argv: agent's uid, gid, seconds until commands are frozen, path of the door or "", descriptor of the pair."""
    uid, gid, freeze_s = (int(text) for text in sys.argv[1:4])
    door, spawner_fd = sys.argv[4], int(sys.argv[5])
    os.set_inheritable(spawner_fd, False)
    listener = listen()
    take_rights_of(uid, gid)
    os.umask(0o022)
    os.chdir("/")
    Server(listener, spawner_fd, freeze_s, door).run()


if __name__ == "__main__":
    main()
