"""torch.compile with the eager and the AOT backend, hooks and graph breaks."""

import facts
import torch


@torch.compile(backend="aot_eager")
def step(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss = model(batch).square().mean()
    print("a graph break")
    return loss * 2


torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
losses = []
for _ in range(3):
    loss = step(model, torch.ones(2, 4))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(round(loss.item(), 6))
compiled_step = torch.compile(optimizer.step, backend="eager")
model(torch.ones(2, 4)).sum().backward()
compiled_step()
explained = torch._dynamo.explain(lambda x: x.sin() + 1)(torch.ones(2))
facts.write(
    losses=losses,
    breaks=explained.graph_break_count,
    weight=round(model.weight.sum().item(), 6),
    counters=dict(torch._dynamo.utils.counters["stats"]),
)
