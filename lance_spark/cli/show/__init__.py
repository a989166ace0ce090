"""What `inspect` prints, one module per kind of file.

Each shows what it can and raises a `LanceError` with the byte position where it can't
go on. None reads a large file as a whole.
"""
