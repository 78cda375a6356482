"""Where workspaces come from, if they are no directory of the node. Read: held, jobs, confined, child, git, unpack."""
