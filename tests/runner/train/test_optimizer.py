"""Tests that an optimizer step uses the configuration of that step, which a history may change."""

from typing import get_args

import pytest
import torch
from torch import nn

from headway.jobspec.spec.training import Optimizer as Optimizer_of_spec
from headway.runner.contract import Optimizer
from headway.runner.train.optimizer import learning_rate, make_optimizer, set_hyperparameters


def test_every_number_of_a_step_comes_from_its_configuration() -> None:
    model = nn.Linear(3, 2)
    optimizer = make_optimizer(model, Optimizer(0.1))
    changed = Optimizer(0.01, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.3)
    set_hyperparameters(optimizer, changed, 7, 10)
    matrices, vectors = optimizer.param_groups
    assert [parameter.dim() for group in (matrices, vectors) for parameter in group["params"]] == [2, 1]
    for group, decay in ((matrices, 0.3), (vectors, 0.0)):
        found = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
        assert found == {"lr": learning_rate(changed, 7, 10), "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": decay}


def test_a_step_with_the_same_numbers_is_bit_for_bit_the_same() -> None:
    """Setting a value that is already in effect changes no bit."""
    results = []
    for again in (False, True):
        torch.manual_seed(1)
        model, config = nn.Linear(3, 2), Optimizer(0.1)
        optimizer = make_optimizer(model, config)
        for step in range(3):
            if again or step == 0:
                set_hyperparameters(optimizer, config, 0, 100)
            model(torch.ones(3)).sum().backward()
            optimizer.step()
        results.append(model.weight.detach().clone())
    assert torch.equal(*results)


@pytest.mark.parametrize(
    ("step", "rate"),
    [(0, 0.05), (1, 0.1), (2, 0.1), (6, pytest.approx(0.055)), (10, pytest.approx(0.01)), (99, pytest.approx(0.01))],
)
def test_the_rate_warms_up_and_decays_along_a_cosine_to_the_last_step(step: int, rate: float) -> None:
    assert learning_rate(Optimizer(0.1, warmup_steps=2), step, 11) == rate


SCHEDULES = {
    "cosine": [1.0, 0.962747, 0.86, 0.721508, 0.55, 0.378492, 0.24, 0.137253, 0.1],
    "linear": [1.0, 0.8875, 0.775, 0.6625, 0.55, 0.4375, 0.325, 0.2125, 0.1],
    "constant": [1.0] * 9,
    "wsd": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.7, 0.4, 0.1],
}


@pytest.mark.parametrize("schedule", get_args(Optimizer_of_spec.model_fields["schedule"].annotation))
def test_each_schedule_of_the_spec_has_its_shape(schedule: str) -> None:
    config = Optimizer(1.0, warmup_steps=2, schedule=schedule, decay_steps=3 if schedule == "wsd" else None)
    rates = [learning_rate(config, step, 11) for step in range(11)]
    assert rates[:2] == [0.5, 1.0]
    assert rates[2:] == pytest.approx(SCHEDULES[schedule], abs=0.02)
    assert (rates[-1] == pytest.approx(0.1)) == (schedule != "constant")


def test_wsd_decays_in_each_of_its_last_steps_and_in_no_other() -> None:
    config = Optimizer(1.0, schedule="wsd", decay_steps=4, min_lr_ratio=0.0)
    rates = [learning_rate(config, step, 10) for step in range(10)]
    assert rates == pytest.approx([1.0] * 6 + [0.75, 0.5, 0.25, 0.0])
