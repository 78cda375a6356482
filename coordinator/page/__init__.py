"""The operator's page, rendered here: logins → **page** → browser. Read: routing, login, story, rendering, sessions."""
