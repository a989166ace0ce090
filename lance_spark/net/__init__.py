"""Streams with deadlines, listener, TLS: the only layer that knows sockets.

Everything here moves bytes and knows no protocol. Every wait has a deadline; `OSError`
and `ssl.SSLError` end here and go on as `ConnectionLost`, `Timeout` or `OptionError`.
"""
