"""What clients are told whose answers the router does not wait for any longer, because it is being stopped."""

from evenload.api.errors import ApiError

CODE = "router_stopped"
MESSAGE = "The router was stopped, and could not wait for the rest of the answer. Ask again."
LEFT = ApiError(status=503, code=CODE, message=MESSAGE, retry_after_s=1)
TELL_S = 1.0
