"""Random weights: the same for a seed on every device."""

import torch
from torch import Tensor


class Draw:
    """Draws weights one after another, on the CPU, in fp32; then they go to `device` as `dtype`.

    On the device "meta" nothing is drawn: there are sizes only.
    """

    def __init__(self, seed: int, dtype: torch.dtype, device: str) -> None:
        self._dtype, self._device = dtype, device
        self._generator = torch.Generator("cpu").manual_seed(seed)

    def matrix(self, inputs: int, outputs: int) -> Tensor:
        """[inputs, outputs], uniform, so that inputs of mean square 1 give outputs of mean square 1."""
        if self._device == "meta":
            return torch.empty((inputs, outputs), dtype=self._dtype, device="meta")
        limit = (3 / inputs) ** 0.5
        drawn = torch.empty((inputs, outputs)).uniform_(-limit, limit, generator=self._generator)
        return drawn.to(self._device, self._dtype)

    def constant(self, values: list[float]) -> Tensor:
        """A vector that is not drawn."""
        return torch.tensor(values, dtype=torch.float64).to(self._device, self._dtype)
