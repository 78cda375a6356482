"""Names of everything Sandhog keeps in Redis, with who writes it and how long it lives.

All carry the prefix `sandhog:`; queue names are Celery's and carry `w.` before the node's name.
"""

PREFIX = "sandhog:"

LEASE_MS = 3_000
"""A node's lease; renewed every second."""
COORDINATOR_LEASE_MS = 3_000
"""A coordinator's lease; renewed every second."""
NODE_TTL_S = 600
"""A node's description stays this long after its last renewal, for operators."""
OUTAGE_S = 600
"""The longest Redis outage that is tolerated: deadlines, claims and `expires` outlive it."""
CLAIM_TTL_S = 600 + 2 * OUTAGE_S
"""A claim outlives the longest call (600 s) and an outage on either side of it."""
SESSION_TTL_S = 7 * 86_400
"""A session's hash, counted from its last step."""
PLACE_TTL_S = 3 * 3_600
"""A place, counted from when it was taken, or renewed by the node on which its box stands: longer than the longest
start of a box (an image of 15 minutes, a set-up of two hours), and what nobody gives back is lost for no longer."""
REPLY_TTL_S = 86_400
"""A reply stream, counted from its last entry."""
PROGRESS_TTL_S = 30
"""A node's words on a session's start, counted from when they were written."""
PROGRESS_CHARS = 500
GRANT_TTL_S = 3_600
"""A human's yes that nobody used."""

CHILD_MARK = "."
"""Stands in a sub-agent's session id between the id of the session above it and its own name."""


def queue(node: str) -> str:
    """Return the name of a node's own Celery queue; its list expires."""
    return f"w.{node}"


QUEUE_TTL_S = 86_400
"""What a node does not read any more, counted from when it was last sent anything. Far longer than any call's deadline,
since two machines' clocks may be hours apart: that a late call does not run is the fence's doing."""


def hostname(node: str) -> str:
    """Return a node's name among Celery's workers, by which control commands reach it alone."""
    return f"sandhog@{node}"


def reply_stream(coordinator: str) -> str:
    """Return the stream to which workers append outcomes for one coordinator."""
    return f"{PREFIX}reply:{coordinator}"


COORDINATORS = f"{PREFIX}coordinators"
"""Set of the ids of coordinators whose sessions others may adopt; who adopts the last one takes the id out."""


COORDINATORS_SINCE = f"{PREFIX}coordinators:since"
"""When a coordinator first asked this Redis which one it is, by the clock of Redis; never expires. One that was emptied
has another, and so is told from what it was before."""


def coordinator_lease(coordinator: str) -> str:
    """Return the key that stands while a coordinator lives."""
    return f"{PREFIX}coordinator:{coordinator}"


def asked(coordinator: str) -> str:
    """Return the list of sessions that a coordinator is asked by others to cancel; expires soon.

    A name behind `LOOK` asks it to look into the session's wishes instead, an id behind `TOLD` to look what became of a
    wish of its own.
    """
    return f"{PREFIX}asked:{coordinator}"


LOOK = "?"
"""No session's id begins with it."""
TOLD = "!"
"""Neither with this."""


ASKED_TTL_S = 60
"""What a coordinator is asked that does not come for it."""


def wishes(session_id: str) -> str:
    """Return the list of what other processes want of a session (JSON of `Wish`); whoever has it takes them."""
    return f"{PREFIX}wishes:{session_id}"


WISHES_TTL_S = 86_400
"""Wishes that nobody takes: of a session that no coordinator came to go on with."""


def told(wish_id: str) -> str:
    """Return the key of what became of a wish (JSON of `Told`); written by whoever has the session."""
    return f"{PREFIX}told:{wish_id}"


TOLD_TTL_S = 120
"""An answer that nobody came for."""


def owned(coordinator: str) -> str:
    """Return the set of a coordinator's sessions that others adopt when it dies."""
    return f"{PREFIX}owned:{coordinator}"


def lease(node: str) -> str:
    """Return the key that holds a live node's incarnation."""
    return f"{PREFIX}lease:{node}"


def node(node_name: str) -> str:
    """Return the key of a node's description (JSON of `NodeLife`)."""
    return f"{PREFIX}node:{node_name}"


NODES = f"{PREFIX}nodes"
"""Set of the names of all nodes that ever registered."""


def places(node_name: str) -> str:
    """Return the sorted set of sessions that hold a place on a node (score: expiry, Unix seconds)."""
    return f"{PREFIX}places:{node_name}"


LINE_WAITING = f"{PREFIX}line:waiting"
"""Sorted set of the sessions whose turn for a place may come (score: tag); written by coordinators, as all of a line.
Each part expires an hour after it was last used."""
LINE_RENEWED = f"{PREFIX}line:renewed"
"""Sorted set of all sessions that wait for a place (score: expiry of the ticket, Unix seconds)."""
LINE_TICKETS = f"{PREFIX}line:tickets"
"""Hash of the tickets by session: principal, tag, and the nodes that would do."""
LINE_TAGS = f"{PREFIX}line:tags"
"""Hash of the next tag of each principal (`:name`), and the last one that had its turn (``)."""
LINE_OF = f"{PREFIX}line:of:"
"""Begins the sorted set of one principal's waiting sessions (score: tag)."""
PLACES_OF = f"{PREFIX}places_of:"
"""Begins the sorted set of the sessions by which a principal with a ceiling has places (score: expiry)."""
PLACE_HOLDERS = f"{PREFIX}place_holders"
"""Hash of these sessions' principals."""


def created(principal: str) -> str:
    """Return the sorted set of the sessions that a principal made within an hour (score: when, Unix seconds)."""
    return f"{PREFIX}created:{principal}"


def live(principal: str) -> str:
    """Return the sorted set of a principal's sessions that run or wait (score: expiry, Unix seconds)."""
    return f"{PREFIX}live:{principal}"


DRAINED = f"{PREFIX}drained"
"""Set of the names of nodes that an operator lets have no new sessions."""


ERRANDS = 16
"""What sessions ask of a node at once beside their calls, of either kind: to begin sessions (boxes made ready,
workspaces copied) and to end them. The node has threads of its own for so many; more would make calls wait behind them.
"""


def errands(node_name: str, kind: str) -> str:
    """Return the sorted set of the errands of a kind that a node is on (score: expiry, Unix seconds)."""
    return f"{PREFIX}errands:{node_name}:{kind}"


def lanes(node_name: str) -> str:
    """Return the sorted set of lane holders on a node (score: expiry, Unix seconds)."""
    return f"{PREFIX}lanes:{node_name}"


def lanes_over(node_name: str) -> str:
    """Return the sorted set of those who get no lane on a node any more (score: expiry, Unix seconds).

    Only of such as do not know whether Redis has heard their request for one: it may only just hear it.
    """
    return f"{PREFIX}lanes_over:{node_name}"


def session(session_id: str) -> str:
    """Return the hash of a session: generation, step, cancelled, node (that has its box), owner (its coordinator)."""
    return f"{PREFIX}session:{session_id}"


def progress(session_id: str) -> str:
    """Return the key of a node's last words on how far a session's start is."""
    return f"{PREFIX}progress:{session_id}"


def claim(call_key: str) -> str:
    """Return the key that says who started a call, or that it is fenced and never will start."""
    return f"{PREFIX}claim:{call_key}"


def grant(session_id: str, digest: str) -> str:
    """Return the key of a human's yes to one tool with these very arguments; written by coordinators only."""
    return f"{PREFIX}grant:{session_id}:{digest}"


def seen(session_id: str) -> str:
    """Return the hash of a session's read metadata, by canonical path; expires with the session."""
    return f"{PREFIX}seen:{session_id}"


def path_lock(place: str) -> str:
    """Return the key that holds who replaces the file at a place now; `place` names workspace and path, hashed."""
    return f"{PREFIX}path:{place}"


def session_breakers(session_id: str) -> str:
    """Return the hash of a session's breakers, by tool; each record carries its own expiry."""
    return f"{PREFIX}breaker:session:{session_id}"


def node_breakers(node_name: str) -> str:
    """Return the hash of a node's breakers, by tool; each record carries its own expiry."""
    return f"{PREFIX}breaker:node:{node_name}"


BREAKERS = f"{PREFIX}breaker:*"
"""Pattern of all breakers' keys, for operators."""


def approval(session_id: str, name: str) -> str:
    """Return the hash of one call's request for approval: digest, request, deadline, answer, closed."""
    return f"{PREFIX}approval:{session_id}:{name}"


APPROVALS = f"{PREFIX}approvals"
"""Sorted set of the requests that wait for an answer (`session:name`; score: deadline, Unix milliseconds)."""


def channel_orders(node_name: str) -> str:
    """Return the list of channels that terminals ask a node to serve; expires soon."""
    return f"{PREFIX}channel:at:{node_name}"


def channel_up(channel: str) -> str:
    """Return the stream of frames from a terminal to the node; both of a channel expire when nobody writes to them."""
    return f"{PREFIX}channel:{channel}:up"


def channel_down(channel: str) -> str:
    """Return the stream of frames from the node to the terminal."""
    return f"{PREFIX}channel:{channel}:down"


CHANNEL_TTL_S = 60
"""An order that no node takes, and the streams of a channel that nobody uses."""
