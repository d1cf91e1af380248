#!/bin/bash
#SBATCH --job-name=dgc
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16

# One task for each node: torchrun starts the workers there.
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export ENDPOINT=$head_node:29500
export OMP_NUM_THREADS=4
export GLOO_SOCKET_IFNAME=eth0   # the network between the nodes; see: ip -brief address

srun bash -c 'torchrun --nnodes "$SLURM_NNODES" --node_rank "$SLURM_NODEID" --nproc_per_node 4 \
  --rdzv_backend static --rdzv_endpoint "$ENDPOINT" examples/pytorch/train_mnist.py --epochs 5'
