"""A mixture of experts in the place of a layer's MLP: each token goes through the few that the router likes best.

A token's result is the same bits in any company: each expert's product gives a row the same bits in any batch (see `linear`), and a
token's experts are summed in their order in the model. https://arxiv.org/abs/2101.03961; made by the families that have them.
"""

from __future__ import annotations

import torch

from pagemill.model_config import Experts
from pagemill_server.model.layers import GatedMLP
from pagemill_server.model.operations import swiglu
from pagemill_server.model.weights import LayerWeights


class SparseMLP:
    """Router and experts of one layer."""

    def __init__(self, weights: LayerWeights, hidden: int, experts: Experts) -> None:
        self._chosen, self._normalised = experts.chosen, experts.normalised
        self._router = weights.whole("gate", experts.count, hidden)
        self._add_up = weights.add_up
        self._experts = [
            GatedMLP(weights.part(f"experts.{index}"), hidden, experts.intermediate_size, False, swiglu, share=True)
            for index in range(experts.count)
        ]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        shares, chosen = self._route(x)
        out = torch.zeros_like(x)
        for index in sorted(set(chosen.flatten().tolist())):
            rows, place = (chosen == index).nonzero(as_tuple=True)
            out.index_add_(0, rows, self._experts[index](x[rows]) * shares[rows, place, None])
        return self._add_up(out)

    def _route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, hidden_size] → each token's shares [T, chosen] and experts int64 [T, chosen]."""
        likings = self._router(x).float().softmax(-1)
        shares, chosen = likings.topk(self._chosen, dim=-1)
        if self._normalised:
            shares = shares / shares.sum(-1, keepdim=True)
        return shares.to(x.dtype), chosen
