"""Spark for the tests: a shared session, a standalone cluster, a Connect server."""
