"""The CPU pool: `parent` runs it, `child` is what its worker processes run.

Importing this package costs nothing: `parent` brings anyio and subprocess and is imported
by whoever opens a pool.
"""

# In a worker process these were loaded before their package; this binds them to it.
from mega.adapters.pool import child as child
from mega.adapters.pool import frames as frames
