"""Plain training of one rank: losses, gradients, accumulators, schedulers, clipping, closures, AMP, EMA, several optimizers, hooks."""

import copy
import pickle

import facts
import torch
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import AveragedModel

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 2))
average = AveragedModel(model)
adam = torch.optim.AdamW(model.parameters(), lr=0.01, fused=False)
schedule = OneCycleLR(adam, 0.1, total_steps=20)
scaler = torch.amp.GradScaler("cpu")
told: list[str] = []
adam.register_step_post_hook(lambda optimizer, args, kwargs: told.append("stepped"))
losses = []
for step in range(10):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(16, 8)).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(adam)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(adam)
    scaler.update()
    schedule.step()
    adam.zero_grad(set_to_none=step % 2 == 0)
    average.update_parameters(model)
    losses.append(loss.item())
quadratic = torch.nn.Parameter(torch.tensor([3.0]))
newton = torch.optim.LBFGS([quadratic], lr=0.5)


def closure() -> torch.Tensor:
    newton.zero_grad()
    value = (quadratic**2).sum()
    value.backward()
    return value


class Own(torch.optim.Optimizer):
    """An optimizer of the script's own."""

    def __init__(self, parameters, lr: float) -> None:  # type: ignore[no-untyped-def]
        super().__init__(parameters, {"lr": lr})

    def step(self, closure=None):  # type: ignore[no-untyped-def]
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(group["lr"])
        return "own"


values = [newton.step(closure).item() for _ in range(3)]
own = Own([quadratic], 0.1)
state = copy.deepcopy(adam.state_dict())
again = pickle.loads(pickle.dumps(adam))
facts.write(
    losses=losses,
    values=values,
    own=own.step(),
    told=len(told),
    pickled=type(again).__name__,
    equal=all(torch.equal(a, b) for a, b in zip(state["state"][0].values(), adam.state_dict()["state"][0].values(), strict=True)),
    left=quadratic.item(),
    random=torch.rand(2).tolist(),
    attributes=sorted(name for name in vars(adam) if "hook" not in name),
)
