#!/bin/bash
# Started on each node by wrapper-script.sbatch.
export OMP_NUM_THREADS=8
torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 --rdzv_endpoint $SLURM_LAUNCH_NODE_IPADDR:29500 train.py --data $DATA $1
