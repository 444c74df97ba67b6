"""The Redis adapter, of locks alone: the only package that imports `redis`."""
