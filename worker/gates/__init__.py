"""The gates between dispatch and run: each a callable of one shape that answers itself or asks the following one.

Order: `permission` → `lock` → `breaker` → `run`. The shape is in `gate`.
"""
