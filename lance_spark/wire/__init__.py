"""Wire protocols without I/O: bytes to messages and back.

Each protocol is a package of its own and imports no other one. Nothing below this
package may touch a socket, a file, the clock or a thread.
"""
