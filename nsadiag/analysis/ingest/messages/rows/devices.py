"""CUDA's errors, and faults of GPUs in the kernel's log."""

from nsadiag.analysis.ingest.messages.rows.row import MessageRow
from nsadiag.evidence.messages import HardwareFault, StatedError

CUDA = "pytorch/pytorch c10/cuda/CUDAException.cpp"
XID = "docs.nvidia.com/deploy/xid-errors"

ROWS = (
    MessageRow(
        makes=HardwareFault,
        fixed={"kind": "xid"},
        mark="NVRM: Xid",
        pattern=r"NVRM: Xid \((?:PCI:)?(?P<device>[\w:.]+)\): (?P<number>\d+)(?:, pid='?(?P<pid>\d{1,9}))?",
        example="[12345.678901] NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.",
        source=XID,
    ),
    MessageRow(
        makes=HardwareFault,
        fixed={"kind": "nvlink"},
        mark="SXid (",
        pattern=r"SXid \(PCI:(?P<device>[\w:.]+)\): (?P<number>\d+)",
        example="Nov 28 10:00:00 node7 kernel: nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 42 LTSSM Fault Up",
        source=XID,
    ),
    MessageRow(
        makes=HardwareFault,
        fixed={"kind": "ecc"},
        mark="ECC",
        pattern=r"(?i)(?:uncorrectable|double[- ]bit|DRAM) ECC error",
        example="RuntimeError: CUDA error: uncorrectable ECC error encountered",
        source="docs.nvidia.com/cuda/cuda-runtime-api cudaErrorECCUncorrectable",
    ),
    MessageRow(
        makes=HardwareFault,
        fixed={"kind": "lost"},
        mark="GPU",
        pattern=r"GPU (?:has fallen off the bus|is lost)|Unable to determine the device handle for GPU\s?(?P<device>[\w:.]*)",
        example="Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU",
        source="docs.nvidia.com/deploy/nvml-api NVML_ERROR_GPU_IS_LOST",
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "gpu memory", "type": "OutOfMemoryError"},
        mark="out of memory",
        pattern=r"(?P<text>(?:CUDA|HIP|XPU) out of memory\. Tried to allocate .*|CUDA error: out of memory.*)",
        example="[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.11 GiB of "
        "which 1.02 GiB is free.",
        source="pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp",
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "cuda", "type": "RuntimeError"},
        mark=" when calling `",
        pattern=r"(?P<text>(?:CUBLAS_STATUS|CUDNN_STATUS|CUFFT)_\w+ when calling `[^`]*`)",
        example="[rank1]: RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb, m, n, k )`",
        source="pytorch/pytorch aten/src/ATen/cuda/Exceptions.h",
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "cuda", "type": "AcceleratorError"},
        mark="CUDA error: ",
        pattern=r"(?P<text>CUDA error: (?!out of memory)(?:an? |the |device|unspecified|uncorrectable|misaligned|invalid|unknown|no kernel|peer|all |initialization|driver|system|operation|hardware|launch|CUBLAS|CUDNN).*)",
        example="terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: an illegal memory access was encountered\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
        source=CUDA,
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "cuda", "type": "RuntimeError", "ends_it": False},
        mark="Assertion `",
        pattern=r"(?P<text>\S+\.cuh?:\d+: .+?: block: \[[\d,]+\], thread: \[[\d,]+\] Assertion `.+?` failed)",
        example="/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelectLargeIndex: block: [12,0,0], thread: [0,0,0] Assertion "
        "`srcIndex < srcSelectDimSize` failed.",
        source="pytorch/pytorch c10/macros/Macros.h CUDA_KERNEL_ASSERT",
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "shared memory", "type": "RuntimeError"},
        mark="shared memory",
        pattern=r"(?P<text>(?:DataLoader worker .*?bus error|unable to (?:open|write|mmap|allocate).*? shared memory|unexpected bus error).*)",
        example="RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
        "shared memory. Please try to raise your shared memory limit. unable to write to file: shared memory",
        source="pytorch/pytorch aten/src/ATen/MapAllocator.cpp",
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "disk", "type": "OSError"},
        mark="No space left on device",
        pattern=r"(?P<text>(?:OSError: )?\[Errno 28\] No space left on device.*)",
        example="[rank0]: OSError: [Errno 28] No space left on device: '/scratch/ckpt/model.pt'",
        source="docs.python.org/3/library/errno.html ENOSPC",
    ),
)  # fmt: skip
