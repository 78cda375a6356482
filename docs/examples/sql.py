"""Two read-only SQL tools: a SQLite file of the workspace, and a database of the operator's, by rows per user.

The first one runs in the session's box, where the file is: whoever may use the box may read all of it. The second one
runs on the node, and shows the rows of the session's principal alone: the box cannot reach that database at all.
"""

import sqlite3
from contextlib import closing
from typing import Annotated

from pydantic import Field

from tools.base import ErrorCode, ToolFailure
from tools.context import ToolContext
from tools.own import tool

MAX_ROWS = 200
READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}

IN_BOX = """
import json, sqlite3, sys
path, query, limit = sys.argv[1:]
database = sqlite3.connect(f"file:{path.replace('%', '%25').replace('?', '%3f').replace('#', '%23')}?mode=ro", uri=True)
try:
    cursor = database.execute(query)
    names = [column[0] for column in cursor.description or ()]
    print(json.dumps({"columns": names, "rows": cursor.fetchmany(int(limit))}, default=repr))
except sqlite3.Error as exc:
    sys.exit(f"{type(exc).__name__}: {exc}")
"""


@tool(runs_on="box", effect="reads", timeout_s=30)
def query_file(path: str, query: str, context: ToolContext) -> str:
    """Run one SQL query on a SQLite file of the workspace, without being able to change it.

    Args:
        path: The database file.
        query: One SELECT statement; at most 200 rows are shown.
    """
    ended = context.box.run(["python3", "-I", "-c", IN_BOX, path, query, str(MAX_ROWS)], timeout_s=20)
    if ended.exit_code != 0:
        why = ended.stderr.strip()[-500:] or "it took too long"
        raise ToolFailure(ErrorCode.INVALID_PARAM, f"The query did not run: {why}")
    return ended.stdout.strip()


@tool(effect="reads", concurrency_safe=True, timeout_s=10, secrets=["ORDERS_DATABASE"])
def query_orders(query: Annotated[str, Field(min_length=1)], context: ToolContext) -> dict[str, list[object]]:
    """Run one SQL query on the table `orders` (id, item, cents), which holds the user's own orders.

    Args:
        query: One SELECT statement; at most 200 rows are shown.
    """
    # The name of the database is the operator's. In its place a server's address with a role per user does even better.
    path = context.secrets["ORDERS_DATABASE"]
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT id, item, cents FROM orders WHERE owner = ?", (context.principal,)).fetchall()
    # The query runs on a copy of the user's own rows: whatever it says, there is nothing else to find.
    with closing(sqlite3.connect(":memory:")) as own:
        own.execute("CREATE TABLE orders (id INTEGER, item TEXT, cents INTEGER)")
        own.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
        own.commit()
        own.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY)
        try:
            cursor = own.execute(query)
            return {
                "columns": [column[0] for column in cursor.description or ()],
                "rows": [list(row) for row in cursor.fetchmany(MAX_ROWS)],
            }
        except sqlite3.Error as exc:
            raise ToolFailure(ErrorCode.INVALID_PARAM, f"The query did not run: {exc}") from exc
