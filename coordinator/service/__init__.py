"""Many sessions in one process, for principals over HTTP. Read: principals, wanted, admission, sessions, journal."""
