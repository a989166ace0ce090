"""The web console: what a broker has and does, as a page and as JSON behind it.

`console` puts it together and is all that the broker sees. `app` has the requests,
`guard` refuses those that its own page does not send, and the others make the answers.
What a visitor may see is decided by `broker.gate`, as for any other client. Nothing of
starlette and uvicorn, which are an extra, is imported before a console starts.
"""

from lance_spark.broker.console.console import Console

__all__ = ["Console"]
