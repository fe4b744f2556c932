"""The planner's benchmark scores predictions: errors, groups, verdicts, choices of layouts, peers, and its command."""

import csv
import json
import math
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks.planner.__main__ import main
from benchmarks.planner.flops import hardware_flops, model_flops
from benchmarks.planner.goals import Goal
from benchmarks.planner.layouts import by_source, choices, choices_by_verdict, summed, sweeps
from benchmarks.planner.memories import comparable, labelled, peaks, verdicts
from benchmarks.planner.naive import fitted, naive_seconds
from benchmarks.planner.peers import PYTHON, llm_analysis_seconds
from benchmarks.planner.predict import Predicted, predict
from benchmarks.planner.residuals import Residual, write_residuals
from benchmarks.planner.rows import Peak, Row, as_row
from benchmarks.planner.spread import errors, mean_of_groups, rank_correlation
from benchmarks.planner.times import Timed, kind, timed, transfer
from headway.planner.memory.ledger import GIB
from headway.planner.training import Training, Verdict

from .test_planner_rows import LLAMA

GPT = {
    **LLAMA,
    "id": "gpt",
    "source": "korthikanti",
    "model": "gpt3-175b",
    "params_b": "175",
    "hidden": "12288",
    "layers": "96",
    "heads": "96",
    "kv_heads": "96",
    "ffn": "49152",
    "vocab": "51200",
    "seq": "2048",
    "gpu": "A100-SXM-80",
    "tp": "8",
    "pp": "8",
    "vp": "1",
    "cp": "1",
    "dp": "1",
    "act_ckpt": "full",
    "precision": "fp16",
}


def rows(*changes: dict[str, str]) -> list[Row]:
    return [as_row({**LLAMA, "id": f"row-{number}", **change}) for number, change in enumerate(changes)]


def with_verdict(row: Row, verdict: Verdict) -> Predicted:
    """Return the row on a GPU with as much memory as the planner needs for the verdict."""
    [found] = predict([row])
    assert found.memory is not None
    sizes = (replace(found.memory, capacity=found.memory.allocated * percent / 100) for percent in range(1, 400))
    return replace(found, memory=next(use for use in sizes if use.verdict == verdict))


def test_errors_are_relative_to_the_measurement() -> None:
    found = errors([(1.1, 1.0), (0.8, 1.0), (2.0, 2.0)])
    assert found is not None
    assert found.rows == 3
    assert (found.mean, found.median, found.worst, found.bias) == pytest.approx((0.1, 0.1, 0.2, -0.1 / 3))
    assert errors([]) is None


def test_large_group_has_no_more_weight_than_a_small_one() -> None:
    assert mean_of_groups({"large": [(1.1, 1.0)] * 9, "small": [(1.3, 1.0)], "empty": []}) == pytest.approx(0.2)


def test_rank_correlation_gives_ties_their_mean_rank() -> None:
    assert rank_correlation([(1, 10), (2, 20), (3, 30)]) == pytest.approx(1)
    assert rank_correlation([(1, 30), (2, 20), (3, 10)]) == pytest.approx(-1)
    assert rank_correlation([(1, 1), (1, 2), (2, 3)]) == pytest.approx(0.8660254)
    assert rank_correlation([(1, 1), (2, 2)]) is None
    assert rank_correlation([(1, 1), (1, 2), (1, 3)]) is None


def test_model_flops_match_the_published_formula() -> None:
    [row] = [as_row(GPT)]
    training = row.training
    assert training is not None
    layers, hidden, vocab, sequence = 96, 12288, 51200, 2048
    published = 72 * 128 * sequence * layers * hidden**2 * (1 + sequence / (6 * hidden) + vocab / (12 * layers * hidden))
    # arXiv 2205.05198, section 5.
    assert model_flops(training) == pytest.approx(published, rel=0.001)
    assert hardware_flops(training) == pytest.approx(model_flops(training) * 4 / 3)
    assert hardware_flops(replace(training, recomputed_share=0.5)) == pytest.approx(model_flops(training) * 7 / 6)


def test_naive_model_ignores_the_layout_and_its_constants_are_medians() -> None:
    training = rows({})[0].training
    other = rows({"tp": "8", "pp": "2"})[0].training
    assert training is not None
    assert other is not None
    assert naive_seconds(training) == naive_seconds(other)
    constants = fitted(rows({"step_time_s": "10"}, {"step_time_s": "20"}, {"step_time_s": "40"}))
    assert set(constants) == {"H100-SXM-80 fp8 dense", "Hopper fp8 dense", "any fp8 dense", "any dense"}
    expected = hardware_flops(training) / (64 * 1979e12) / 20
    assert constants["any dense"] == pytest.approx(expected, abs=1e-4)


def test_times_are_scored_by_source_and_intervals_by_their_coverage() -> None:
    [found] = timed(predict(rows({})))
    exact = replace(found, measured=found.seconds)
    late = Timed(found.predicted, 1.0, 1.5, 0.9, 1.1)
    scored = kind([replace(exact, low=1e-9, high=1e9), late])
    assert scored.covered == 0.5
    assert scored.mean_over_sources == pytest.approx(1 / 6)
    assert list(scored.by_source) == ["dgxc"]
    assert list(scored.by_gpu) == ["H100-SXM-80"]
    assert scored.newer is not None
    assert scored.newer.rows == 2
    assert kind([]).pooled is None


def test_only_complete_rows_that_ran_and_have_a_time_are_timed() -> None:
    found = timed(predict(rows({}, {"step_time_s": ""}, {"outcome": "OOM"}, {"act_ckpt": "unknown"}, {"mbs": ""})))
    assert [row.predicted.row.id for row in found] == ["row-0"]


def test_measured_row_of_a_group_removes_the_common_factor_of_the_others() -> None:
    found = timed(predict(rows({}, {"gbs_seqs": "256"}, {"gbs_seqs": "64"})))
    slow = [replace(row, measured=1.7 * row.seconds) for row in found]
    scored = transfer(slow)
    assert scored is not None
    assert scored.groups == 1
    assert scored.uncalibrated == pytest.approx(1 - 1 / 1.7)
    assert scored.mean_over_groups < scored.uncalibrated / 2
    assert scored.pooled == pytest.approx(scored.mean_over_groups)
    assert transfer(slow[:1]) is None


def test_peak_is_compared_with_the_printed_kind_of_memory() -> None:
    found = predict(rows({}, {"source": "weblog"}))
    assert found[0].memory is not None
    use = replace(found[0].memory, allocated=10.0 * GIB, reserved=12.0 * GIB, outside=2.0 * GIB)
    assert [comparable(use, name) for name in ("allocated", "reserved", "device")] == [10.0, 12.0, 14.0]
    scored = peaks(replace(each, memory=use, row=replace(each.row, peak=Peak(8.0, "allocated"))) for each in found)
    assert scored.known is not None
    assert scored.other is not None
    assert (scored.known.rows, scored.other.rows) == (1, 1)
    assert scored.known.mean == pytest.approx(0.25)
    assert list(scored.by_kind) == ["allocated"]
    assert set(scored.by_framework) == {"megatron"}


def test_verdicts_are_scored_against_runs_out_of_memory() -> None:
    ran, failed = rows({}, {"outcome": "OOM"})
    said: list[tuple[Row, Verdict]] = [
        (ran, "fits"),
        (ran, "does not fit"),
        (ran, "tight"),
        (failed, "does not fit"),
        (failed, "does not fit"),
        (failed, "fits"),
        (failed, "tight"),
    ]
    found = verdicts([with_verdict(row, verdict) for row, verdict in said])
    assert found is not None
    assert (found.rows, found.out_of_memory) == (7, 4)
    assert (found.right, found.missed, found.tight) == pytest.approx((3 / 5, 0.25, 2 / 7))
    assert verdicts([]) is None


def test_only_sources_with_both_outcomes_are_labelled() -> None:
    found = labelled(predict(rows({}, {"outcome": "OOM"}, {"source": "mpt"}, {"source": "aleph", "outcome": "OOM"})))
    assert [each.row.id for each in found] == ["row-0", "row-1"]


SWEEP = (
    {"tp": "4", "pp": "4", "step_time_s": "10"},
    {"tp": "8", "pp": "2", "step_time_s": "20"},
    {"tp": "8", "pp": "2", "mbs": "2", "step_time_s": "40"},
    {"tp": "2", "pp": "8", "outcome": "OOM", "step_time_s": ""},
)


def test_sweep_has_three_measured_rows_that_differ_only_in_their_layout() -> None:
    [found] = sweeps(predict(rows(*SWEEP, {"gbs_seqs": "256", "step_time_s": "10"}, {"source": "aleph", "step_time_s": "10"})))
    assert (found.source, found.name) == ("dgxc", "llama3-70b on 64 H100-SXM-80, 128 x 8192, fp8")
    assert [each.row.id for each in found.measured] == ["row-0", "row-1", "row-2"]
    assert [each.row.id for each in found.failed] == ["row-3"]
    assert list(by_source([found])) == ["dgxc"]


def test_choice_loses_the_slowdown_of_its_layout_against_the_best() -> None:
    found = sweeps(predict(rows(*SWEEP)))
    said = {"row-0": 3.0, "row-1": 2.0, "row-2": 4.0, "row-3": 1.0}
    [choice] = choices(found, lambda each: said[each.row.id])
    assert (choice.loss, choice.out_of_memory, choice.correlation) == pytest.approx((0.5, 0, 0.5))
    [chance] = choices(found, lambda each: 1.0)
    assert chance.loss == pytest.approx((0 + 0.5 + 0.75) / 3)
    assert chance.correlation is None


def test_choice_of_a_layout_out_of_memory_loses_everything() -> None:
    [sweep] = sweeps(predict(rows(*SWEEP)))
    said: dict[str, Verdict] = {"row-0": "does not fit", "row-1": "fits", "row-2": "fits", "row-3": "tight"}
    judged = replace(
        sweep,
        measured=tuple(with_verdict(each.row, said[each.row.id]) for each in sweep.measured),
        failed=tuple(with_verdict(each.row, said[each.row.id]) for each in sweep.failed),
    )
    seconds = {"row-0": 1.0, "row-1": 3.0, "row-2": 4.0, "row-3": 2.0}
    [trusting] = choices_by_verdict([judged], lambda each: seconds[each.row.id], {"fits", "tight"})
    assert (trusting.loss, trusting.out_of_memory) == (1.0, 1.0)
    [careful] = choices_by_verdict([judged], lambda each: seconds[each.row.id], {"fits"})
    assert (careful.loss, careful.out_of_memory) == (0.5, 0.0)
    total = summed([trusting, careful])
    assert total is not None
    assert (total.sweeps, total.mean, total.worst, total.out_of_memory) == (2, 0.75, 1.0, 1.0)
    assert summed([]) is None


@pytest.mark.parametrize(
    ("goal", "met"), [(Goal("", 0, 0.1, 0.1), True), (Goal("", 0.85, 0.95, 0.96), False), (Goal("", 0, 0.1, None), None)]
)
def test_goal_is_met_between_its_bounds_and_needs_a_measurement(goal: Goal, met: bool | None) -> None:
    assert goal.met is met


needs_peers = pytest.mark.skipif(not PYTHON.is_file(), reason="`make peers` has not installed llm-analysis and matplotlib")


@needs_peers
def test_llm_analysis_accepts_a_gpt_and_rejects_an_indivisible_width() -> None:
    gpt, llama = as_row(GPT).training, as_row({**LLAMA, "ffn": "28673"}).training
    assert gpt is not None
    assert llama is not None
    taken, refused = llm_analysis_seconds([gpt, llama])
    assert refused is None
    assert taken == pytest.approx(hardware_flops(gpt) / (64 * 312e12 * 0.5), rel=0.01)


def _file(path: Path, found: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list({name: None for row in found for name in row}))
        writer.writeheader()
        writer.writerows(found)
    return path


@pytest.mark.slow
@needs_peers
def test_command_scores_and_plots_any_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _file(tmp_path / "rows.csv", [{**LLAMA, **row, "id": f"row-{number}"} for number, row in enumerate(SWEEP)])
    code = main(["--rows", str(file), "--json", "--plot", str(tmp_path / "pictures")])
    printed = json.loads(capsys.readouterr().out)
    assert (printed["score"]["counts"]["rows"], printed["score"]["counts"]["timed"]) == (4, 3)
    assert [row["id"] for row in printed["rows"]] == ["row-0", "row-1", "row-2", "row-3"]
    assert code == int(any(goal["met"] is False for goal in printed["goals"]))
    assert [picture.read_bytes()[:4] for picture in sorted((tmp_path / "pictures").glob("*.png"))] == [b"\x89PNG"] * 2


@pytest.mark.slow
@needs_peers
def test_command_lists_excluded_rows_with_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _file(
        tmp_path / "rows.csv", [LLAMA, {**LLAMA, "id": "odd", "gpu": "TPU-v5p"}, {**LLAMA, "id": "tuned", "source": "dgxc-ft"}]
    )
    main(["--rows", str(file)])
    printed = capsys.readouterr().out.splitlines()
    assert printed[:4] == [
        "3 rows, 1 complete, 1 of them with a step time",
        "Left out:",
        "      1 fine-tuning: dgxc-ft: fine-tuning, not training (tuned)",
        "      1 not understood: dgxc: accelerator `TPU-v5p` (odd)",
    ]
    assert (
        printed[-len([line for line in printed if line.startswith(("  met ", "  NOT MET ", "  not measured "))]) - 1] == "Goals"
    )


@needs_peers
def test_command_shows_the_errors_of_unseen_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = {"scales": {"mean_over_sources": 0.08}, "experts": {"models": {"mean_over_sources": 0.15}}}
    file = tmp_path / "leave-one-out.json"
    file.write_text(json.dumps(measured), encoding="utf-8")
    residuals = [
        Residual("a", "source", "mpt", "A100-SXM-80", "Ampere", "composer", 0, 8, -math.log(1.123), -math.log(1.3)),
        Residual("b", "source", "moezoo", "H100-SXM-80", "Hopper", "megatron", 8, 64, -math.log(1.3), -math.log(1.5)),
    ]
    write_residuals(
        residuals + [replace(residual, source=f"{residual.source}-other") for residual in residuals],
        tmp_path / "rows.csv",
    )
    monkeypatch.setattr("benchmarks.planner.unseen.FILE", file)
    monkeypatch.setattr("benchmarks.planner.residuals.FILE", tmp_path / "rows.csv")
    main(["--rows", str(_file(tmp_path / "published.csv", [LLAMA]))])
    printed = capsys.readouterr().out.splitlines()
    assert "  mean over sources 12.3%, by the naive model 30.0%" in printed
    assert "    mpt 12.3%, mpt-other 12.3%" in printed
    assert "    moezoo 30.0%, moezoo-other 30.0%" in printed
    assert "  models and numbers of GPUs that no constant saw: mean over sources 8.0%" in printed
    assert "  a source's models that no constant saw: mean over sources 15.0%" in printed
    assert "  NOT MET      dense step time, unseen sources, mean over sources: 12.3%, at most 12%" in printed
    assert "  NOT MET      intervals of 90 % that hold the measured time: dense, unseen sources: 100.0%, 87% to 95%" in printed


def test_missing_file_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", str(tmp_path / "none.csv")]) == 3
    assert capsys.readouterr().err.startswith("benchmark: [Errno 2] No such file or directory")


def test_training_is_predicted_or_its_refusal_is_reported() -> None:
    row = rows({})[0]
    assert row.training is not None
    impossible: Training = replace(row.training, degrees=replace(row.training.degrees, schedule="Spiral"))
    [answered, refused] = predict([row, replace(row, training=impossible)])
    assert (answered.refused, refused.step, refused.memory) == ("", None, None)
    assert "Spiral" in refused.refused
