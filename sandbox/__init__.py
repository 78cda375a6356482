"""Where a call runs: boxes (containers), the link to each, and the guest inside.

Read in this order: `requests` (what is asked and answered), `wire` (the language of the link), `spec` (what a box is
made of), `box` and `link` (the host's end), `engine` (Docker), `record` and `reaper` (who owns a box, what is swept),
`guest_folder` (what a box brings along), then `guest/` (the other end).
"""
