"""The kernels of inference engines, for the comparison: TensorRT-LLM's and vLLM's as FlashInfer builds them.

    torchrun --nproc-per-node RANKS serving.py BYTES...

Output and method are those of peers.py. Measures all-reduce of so many bytes, then all-reduce with the addition of a
residual and RMS norm, of 1 to 128 rows. Needs the wheels flashinfer-python 0.6.1 and apache-tvm-ffi on PYTHONPATH, and
nvcc, with which FlashInfer builds its kernels when they are first used. TensorRT-LLM's kernels are launched as
FlashInfer's users launch them, with programmatic dependent launch and sums in f32.
"""

import contextlib
import io
import os
import sys

os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", "9.0a")

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

from peers import RANK, RANKS, attempt

import flashinfer.comm as comm

ROWS, HIDDEN, EPS = 512, 8192, 1e-5


def built(load):
    """Lets one rank build what `load` needs."""
    if RANK == 0:
        load()
    dist.barrier()


class Tensorrt:
    """TensorRT-LLM's all-reduce and its fusion with what follows."""

    def __init__(self, device):
        built(comm.trtllm_ar.get_trtllm_comm_module)
        self.device = device
        with contextlib.redirect_stdout(io.StringIO()):
            made = comm.trtllm_create_ipc_workspace_for_all_reduce_fusion(
                RANK, RANKS, ROWS, HIDDEN, group=dist.group.WORLD
            )
        self.workspace = made[1]

    def tensor(self, *shape):
        return torch.randn(*shape, device=self.device).to(torch.bfloat16)

    def call(self, rows, hidden, one_shot, fused):
        x, out, residual, added, normed = (self.tensor(rows, hidden) for _ in range(5))
        weight = self.tensor(hidden)
        pattern = comm.AllReduceFusionPattern
        kind = pattern.kARResidualRMSNorm if fused else pattern.kAllReduce
        return lambda: comm.trtllm_allreduce_fusion(
            allreduce_in=x,
            world_size=RANKS,
            world_rank=RANK,
            token_num=rows,
            hidden_dim=hidden,
            workspace_ptrs=self.workspace,
            launch_with_pdl=True,
            trigger_completion_at_end=True,
            fp32_acc=True,
            pattern_code=kind,
            use_oneshot=one_shot,
            allreduce_out=None if fused else out,
            residual_in=residual if fused else None,
            residual_out=added if fused else None,
            norm_out=normed if fused else None,
            quant_out=None,
            scale_out=None,
            rms_gamma=weight if fused else None,
            rms_eps=EPS if fused else None,
            scale_factor=None,
            layout_code=None,
        )


def tensorrt(device, sizes):
    peer = Tensorrt(device)
    shots = [(True, "TensorRT-LLM one-shot"), (False, "TensorRT-LLM two-shot")]
    for size in sizes:
        hidden = min(size // 2, 4096)
        rows = size // 2 // hidden
        for one_shot, how in shots:
            # The second divides rows among ranks.
            if one_shot or rows > RANKS:
                attempt(peer.call(rows, hidden, one_shot, False), 10, what="all_reduce", bytes=size, how=how)
    for hidden in (4096, 8192):
        for rows in (1, 8, 32, 128):
            for one_shot, how in shots:
                if one_shot or rows > RANKS:
                    call = peer.call(rows, hidden, one_shot, True)
                    attempt(call, 10, what="all_reduce_norm", rows=rows, hidden=hidden, how=how)


def compiled(device):
    """What a user has without such a kernel: NCCL, on windows too, and the rest compiled."""

    def follow(y, residual, weight):
        z = y + residual
        return z, torch.nn.functional.rms_norm(z, (z.shape[-1],), weight, EPS)

    follow = torch.compile(follow)
    for hidden in (4096, 8192):
        for rows in (1, 8, 32, 128):
            ordinary = torch.randn(rows, hidden, device=device).to(torch.bfloat16)
            window = symmetric.empty(rows, hidden, device=device, dtype=torch.bfloat16)
            symmetric.rendezvous(window, dist.group.WORLD.group_name)
            window.normal_()
            residual, weight = ordinary.clone(), ordinary[0].clone()
            for x, how in ((ordinary, "nccl, compiled"), (window, "nccl window, compiled")):

                def call(x=x):
                    dist.all_reduce(x)
                    follow(x, residual, weight)

                attempt(call, 10, what="all_reduce_norm", rows=rows, hidden=hidden, how=how)


def vllm(device, sizes):
    most = 16 << 20
    built(comm.vllm_ar.get_vllm_comm_module)
    with contextlib.redirect_stdout(io.StringIO()):
        meta = comm.create_shared_buffer(comm.vllm_meta_size() + most, dist.group.WORLD)
        staging = comm.create_shared_buffer(most, dist.group.WORLD)
    data = torch.empty(8 << 20, dtype=torch.uint8, device=device)
    handle = comm.vllm_init_custom_ar(meta, data, RANK, True)
    comm.vllm_register_buffer(handle, staging)

    def captured():
        graph = comm.vllm_get_graph_buffer_ipc_meta(handle)
        all_graphs = [None] * RANKS
        dist.all_gather_object(all_graphs, graph)
        handles, offsets = [list(part) for part in zip(*all_graphs)]
        comm.vllm_register_graph_buffers(handle, handles, offsets)

    for size in (s for s in sizes if s <= 8 << 20):
        x = torch.randn(size // 2, device=device).to(torch.bfloat16)
        out = torch.empty_like(x)

        def call():
            capturing = torch.cuda.is_current_stream_capturing()
            comm.vllm_all_reduce(handle, x, out, 0 if capturing else staging[RANK], 0 if capturing else most, 36)

        attempt(call, 10, captured=captured, what="all_reduce", bytes=size, how="vLLM custom")


def main():
    torch.cuda.set_device(RANK)
    device = torch.device("cuda", RANK)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    symmetric.set_backend("NCCL")
    sizes = [int(a) for a in sys.argv[1:]]
    tensorrt(device, [s for s in sizes if s <= 4 << 20])
    vllm(device, sizes)
    compiled(device)
    torch.cuda.synchronize()
    # Shared buffers are left to the end of the process.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
