"""Variables that are set before torch is imported have their effect."""

import os
import sys

os.environ.update(
    OMP_NUM_THREADS="2", TORCHDYNAMO_DISABLE="1", TORCH_LOGS="guards", HF_HOME=os.path.abspath("hf"), HF_HUB_OFFLINE="1"
)
os.environ.update(TORCHINDUCTOR_CACHE_DIR=os.path.abspath("inductor"), TOKENIZERS_PARALLELISM="false", CUDA_VISIBLE_DEVICES="")
import facts
import huggingface_hub.constants
import torch
import torch._dynamo.config
import torch._inductor.config
import torch._inductor.runtime.cache_dir_utils

facts.write(
    threads=torch.get_num_threads(),
    dynamo_disabled=torch._dynamo.config.disable,
    hub=huggingface_hub.constants.HF_HOME,
    offline=huggingface_hub.constants.HF_HUB_OFFLINE,
    inductor=torch._inductor.runtime.cache_dir_utils.cache_dir(),
    level=torch._logging._internal.log_state.is_artifact_enabled("guards"),
    devices=torch.cuda.device_count(),
    first_argument=sys.argv[0].rpartition("/")[2],
)
