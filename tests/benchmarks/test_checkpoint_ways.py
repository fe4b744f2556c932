"""The benchmark of checkpoints tries every configuration of its peer, on a state of the stated size."""

from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from benchmarks.checkpoint.peer import every_options
from benchmarks.checkpoint.training import MODEL
from headway.runner.train.model import Transformer


def test_every_configuration_of_async_save_runs_once() -> None:
    options = list(every_options())
    assert len({str(each) for each in options}) == len(options) == 14
    plain = {(each.kind, each.reused, each.shared, each.staged_behind) for each in options if not each.tuned}
    stagers = ((False, False), (True, False), (True, True))
    assert plain == {(kind, *stager, behind) for kind in AsyncCheckpointerType for stager in stagers for behind in (False, True)}


def test_state_is_524_megabytes() -> None:
    parameters = sum(parameter.numel() for parameter in Transformer(MODEL).parameters())
    assert round(parameters * 3 * 4 / 1e6) == 524
