"""How clients mix their parts, by hand."""

import torch

from acclimate.ops.mixing import as_near_as_others

T = torch.tensor


def test_a_client_is_as_near_to_itself_as_its_nearest_neighbour():
    """Each has its own row, also where nearness is not mutual."""
    alike = T([[9.0, 0.2, 0.1], [0.3, 9.0, -1.0], [0.5, 0.4, 9.0]])
    torch.testing.assert_close(as_near_as_others(alike).diagonal(), T([0.2, 0.3, 0.5]))
    off = ~torch.eye(3, dtype=torch.bool)
    assert torch.equal(as_near_as_others(alike)[off], alike[off])
