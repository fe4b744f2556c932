"""Tests six jobs as teams have them, written in full: each passes the check without a message and renders to a valid script."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.compile import PlannedJob, compile_documents

HERE = Path(__file__).parent


def planned(name: str) -> tuple[PlannedJob, ...]:
    compiled = compile_documents([HERE / f"{name}.yaml"])
    assert list(compiled.problems) == []
    return compiled.jobs


def rendered(job: PlannedJob, suffix: str) -> str:
    return next(text for path, text in job.files().items() if path.suffix == suffix)


def directives(script: str) -> set[str]:
    return {line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")}


def argv(job: PlannedJob) -> list[str]:
    return list(job.plan.run.trainer.options["argv"])


def test_torchtitan_on_sixteen_nodes() -> None:
    (job,) = planned("titan")
    script = rendered(job, ".sbatch")
    wanted = {
        "nodes=17",
        "gpus-per-node=8",
        "cpus-per-task=192",
        "mem=0",
        "account=llm",
        "qos=high",
        "reservation=march",
        "switches=1@12:00:00",
        "mail-type=FAIL",
    }
    assert wanted <= directives(script)
    assert "secret HF_TOKEN\nsecret WANDB_API_KEY\n" in script
    assert "--container-env=HEADWAY_NODES,HF_TOKEN,WANDB_API_KEY," in script
    assert ",MELLANOX_VISIBLE_DEVICES " in script
    assert "ulimit -l unlimited\n" in script
    assert "export GLOO_SOCKET_IFNAME=eth0\n" in script
    assert {"--job.dump_folder={run_directory}", "--compile.enable", "--checkpoint.interval=500"} <= set(argv(job))


def test_megatron_with_flags_that_follow_the_spec() -> None:
    (job,) = planned("mega")
    assert {"constraint=hbm3", "dependency=singleton", "nice=10"} <= directives(rendered(job, ".sbatch"))
    assert job.plan.run.trainer.options["python"] is False
    words = argv(job)
    assert words[:2] == ["bash", "pretrain.sh"]
    assert {"--sequence-parallel", "--bf16", "--recompute-activations", "--save-every-seconds=1800"} <= set(words)
    assert "--num-layers-per-virtual-pipeline-stage=2" in words
    assert "--fp16" not in words


def test_fine_tuning_on_a_part_of_a_node() -> None:
    (job,) = planned("hf")
    assert (job.plan.world_size, job.plan.gpus_per_slot, job.plan.gpus_per_node) == (4, 4, 8)
    assert {"gpus-per-node=4", "cpus-per-task=96", "mem=943718M"} <= directives(rendered(job, ".sbatch"))
    words = argv(job)
    assert "--gradient_accumulation_steps=8" in words
    assert [words[index] for index in job.plan.run.trainer.options["late"]] == [
        "--output_dir={run_directory}/sft",
        "--run_name={run}",
    ]


def test_a_kueue_queue_and_full_pod_options() -> None:
    (job,) = planned("kueue")
    found = yaml.safe_load(rendered(job, ".yaml"))
    template: dict[str, Any] = found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    pod = template["spec"]
    assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert template["metadata"]["labels"]["cost-center"] == "42"
    assert template["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
    assert (pod["priorityClassName"], pod["runtimeClassName"]) == ("high", "nvidia")
    assert pod["imagePullSecrets"] == [{"name": "registry"}, {"name": "team"}]
    variables = {each["name"]: each.get("valueFrom") for each in pod["containers"][0]["env"]}
    assert variables["HF_TOKEN"] == {"secretKeyRef": {"name": "headway-secrets", "key": "HF_TOKEN"}}
    assert variables["WANDB_API_KEY"] == {"secretKeyRef": {"name": "tracking", "key": "wandb"}}
    assert variables["POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_ten_runs_of_a_sweep() -> None:
    jobs = planned("sweep")
    assert len({job.plan.name for job in jobs}) == 10
    assert [job.plan.name for job in jobs][:2] == ["lr-lr-0p0001-seed-1", "lr-lr-0p0001-seed-2"]
    assert all("gpus-per-node=1" in directives(rendered(job, ".sbatch")) for job in jobs)


def test_six_to_eight_preemptible_nodes() -> None:
    (job,) = planned("spot")
    assert {"nodes=6-8", "no-kill", "partition=spot"} <= directives(rendered(job, ".sbatch"))
    assert (job.plan.run.slots, job.plan.run.min_slots) == (8, 6)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="apt-get install shellcheck")
@pytest.mark.parametrize("name", ["titan", "mega", "hf", "spot"])
def test_each_script_is_clean_for_shellcheck(name: str) -> None:
    (job,) = planned(name)
    command = ["shellcheck", "--shell=bash", "--severity=style", "-"]
    script = rendered(job, ".sbatch")
    assert subprocess.run(command, input=script, capture_output=True, text=True, check=False).stdout == ""
