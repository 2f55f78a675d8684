"""A small Hugging Face Hub on loopback, with faults to order: for tests, and for nothing else.

with Hub() as hub:
    hub.add_model("org/tiny", {"config.json": b"{}", "model.safetensors": bytes(10_000)})
    hub.inject(faults.cut(after=1000), path="*.safetensors", times=2)
    ... HF_ENDPOINT = hub.url ...
    assert hub.seen[0].path == "/api/models/org/tiny/revision/main"
"""

from tests.hub import faults
from tests.hub.hub import Hub, Repo
from tests.hub.server import Change, Fault, Reply, Seen, Server

__all__ = ["Change", "Fault", "Hub", "Reply", "Repo", "Seen", "Server", "faults"]
