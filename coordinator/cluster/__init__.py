"""What the coordinator has to do with Redis and the nodes: places, lanes, dispatch, and exactly one outcome a call."""
