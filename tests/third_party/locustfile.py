"""Load by locust: streamed and plain chats, and clients that leave. An answer that is not whole is a failure."""

from locust import HttpUser, constant, task

CHAT = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Say hello."}]}
PATH = "/v1/chat/completions"


class Chatter(HttpUser):
    """One chat after the other."""

    wait_time = constant(0.05)

    @task(6)
    def stream(self) -> None:
        """Read a stream to its end."""
        body = {**CHAT, "stream": True}
        with self.client.post(PATH, json=body, stream=True, catch_response=True, name="stream") as response:
            lines = list(response.iter_lines())
            if response.status_code != 200 or b"data: [DONE]" not in lines or any(b'"error"' in line for line in lines):
                response.failure(f"{response.status_code}: {lines[-1:]}")

    @task(3)
    def plain(self) -> None:
        """Ask for a plain answer."""
        with self.client.post(PATH, json=CHAT, catch_response=True, name="plain") as response:
            if response.status_code != 200 or not response.json()["choices"][0]["message"]["content"]:
                response.failure(response.text[:100])

    @task(1)
    def leave(self) -> None:
        """Leave after the first line."""
        with self.client.post(
            PATH, json={**CHAT, "stream": True}, stream=True, catch_response=True, name="leave"
        ) as response:
            next(response.iter_lines(), None)
            response.success()
