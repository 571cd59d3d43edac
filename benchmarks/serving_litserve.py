"""A LitServe server of live folders, for benchmarks/serve.py --peer litserve: python serving_litserve.py FOLDER PORT.

LitServe reads the annotations here when it starts, so they must not be strings.
"""

import sys
from pathlib import Path
from typing import Any

import litserve
import numpy as np
import torch

from acclimate.live import Answer, load_live
from acclimate.serving.checkpoint import found


class Clients(litserve.LitAPI):
    """All clients' live models in a dict, in the one worker that there may be."""

    def setup(self, device: str) -> None:
        """Load them."""
        lives = [load_live(path) for path in found([Path(sys.argv[1])])]
        self.lives = {live.client: live for live in lives}
        load_live(found([Path(sys.argv[1])])[0])(np.zeros((64, *lives[0].worker.task.shape), np.uint8))  # warm

    def decode_request(self, request: dict[str, Any]) -> tuple[int, torch.Tensor]:
        """The client and its samples."""
        x = np.array(request["data"], np.uint8).reshape(request["shape"])
        return request["client"], torch.from_numpy(x)

    def predict(self, inputs: tuple[int, torch.Tensor]) -> Answer:
        """Answer and adapt."""
        client, x = inputs
        return self.lives[client](x)

    def encode_response(self, output: Answer) -> dict[str, Any]:
        """The answer as JSON."""
        return {"probabilities": output.probabilities.tolist(), "labels": output.labels, "step": output.step}


if __name__ == "__main__":
    server = litserve.LitServer(Clients(), accelerator="cpu", workers_per_device=1, timeout=60)
    quiet = {"generate_client_file": False, "num_api_servers": 1, "log_level": "error"}
    server.run(host="127.0.0.1", port=int(sys.argv[2]), **quiet)
