"""What holds for every request to the page and every answer of it, before and after all routes."""

from typing import Final

from fastapi import FastAPI, HTTPException
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from exactbatch.errors import ExactbatchError
from exactbatch.planning.request import shown

_HEADERS: Final = {
    # Only files of this page run and are shown; only pages of the same Airflow embed it.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_BODY: Final = 100_000  # bytes; 100 ranges with the longest names of topics need half of them
_SHOWN: Final = 3  # mistakes of a request in one answer


class GuardedApp(FastAPI):
    """An application whose answers all have the headers, also those to failures, and which refuses hostile requests."""

    def build_middleware_stack(self) -> ASGIApp:
        """Guard the whole stack, with the part that answers 500."""
        self.add_exception_handler(ExactbatchError, _refuse)
        self.add_exception_handler(RequestValidationError, _refuse_values)
        return _Guard(super().build_middleware_stack())


class _Guard:
    """Adds the headers, and limits what a request may send."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        size = 0

        async def receive_limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > _BODY:
                raise HTTPException(413, f"expected at most {_BODY:,} bytes in a request, found more")
            return message

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        app = self._app
        if scope["type"] == "http" and ("\0" in scope["path"] or b"%00" in scope["query_string"]):
            app = refusal(
                422,
                "Refused",
                "the address contains the character U+0000, which no name can contain. Remove it.",
            )
        await app(scope, receive_limited, send_guarded)


def refusal(status: int, name: str, message: str) -> JSONResponse:
    """Return an answer that says why a request is refused, in UTF-8 whatever the message quotes."""
    text = message.encode("utf-8", "backslashreplace").decode()
    return JSONResponse({"error": name, "message": text}, status_code=status)


async def _refuse(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001
    return refusal(409, type(error).__name__, str(error))


async def _refuse_values(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001
    assert isinstance(error, RequestValidationError)
    mistakes = [
        f"{'.'.join(map(str, each['loc']))}: {each['msg']}, found {shown(each['input'])}"
        for each in error.errors()[:_SHOWN]
    ]
    return refusal(422, "Refused", "; ".join(mistakes))
