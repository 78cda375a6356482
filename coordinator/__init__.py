"""The coordinator room: runs the model loop and decides what runs, in which order.

Read in this order: `loop` → `model` → `plan` → `dispatch` → `collect` → `budget` → `history`.
Asynchronous throughout; it reaches the workers only by Celery and `worker.contract`.
"""
