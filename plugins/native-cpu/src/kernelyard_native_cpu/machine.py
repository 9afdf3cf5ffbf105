"""The target CPU of generated code, and whether this host can run it."""

from __future__ import annotations

import ctypes
import platform
from functools import cache

from kernelyard.errors import BackendUnavailableError, TargetError
from kernelyard.runtime.api import NamedTuple, cpu_facts

# The x86-64 levels of the System V ABI; each has the features of those before it.
_LEVEL_FEATURES: dict[str, tuple[str, ...]] = {
    "x86-64": ("cmov", "cx8", "fxsr", "mmx", "sse", "sse2"),
    "x86-64-v2": ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3"),
    "x86-64-v3": ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"),
    "x86-64-v4": ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"),
}
LEVELS = tuple(_LEVEL_FEATURES)
# Of the host's further features, those that change the code of numeric kernels.
_HOST_EXTRAS = ("avx512bf16", "avx512fp16", "avx512vbmi", "avx512vnni", "avxneconvert", "avxvnni")
_KNOWN_FEATURES = (*(name for names in _LEVEL_FEATURES.values() for name in names), *_HOST_EXTRAS)
# Linux's names of features, where they are not LLVM's with "_" for ".".
_LINUX_NAMES = {
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512vnni": "avx512_vnni",
    "avxneconvert": "avx_ne_convert",
    "avxvnni": "avx_vnni",
    "bmi": "bmi1",
    "lzcnt": "abm",
    "sahf": "lahf_lm",
    "sse3": "pni",
}
# SVE by the bits of its vectors, which the code depends on. Longer ones are not used; of 128 bits, NEON's are.
_SVE_FEATURES = {"sve256": 256, "sve512": 512}
# ARM's CPUs by LLVM's names: what they have beyond Armv8-A that changes code of numeric kernels. All have NEON, with
# vectors of 128 bits. Source: Arm's technical reference manuals, "Instruction Set Attribute Registers"; Fujitsu, "A64FX
# Microarchitecture Manual".
_V8_2 = ("dotprod", "fullfp16")
_V8_6 = ("bf16", *_V8_2, "i8mm")
_ARM_FEATURES: dict[str, tuple[str, ...]] = {
    "generic": (),
    **dict.fromkeys(("cortex-a53", "cortex-a57", "cortex-a72", "cortex-a73"), ()),
    **dict.fromkeys(("cortex-a55", "cortex-a75", "cortex-a76", "cortex-a77", "cortex-a78", "neoverse-n1"), _V8_2),
    **dict.fromkeys(("apple-m1",), _V8_2),
    **dict.fromkeys(("neoverse-n2", "neoverse-v2"), _V8_6),
    "neoverse-v1": (*_V8_6, "sve256"),
    "a64fx": ("fullfp16", "sve512"),
}
# Where Linux tells a process of an ARM CPU's features: in which word of the auxiliary vector, and the bit in it.
# Source: Linux, arch/arm64/include/uapi/asm/hwcap.h, and Documentation/arch/arm64/elf_hwcaps.rst.
_HWCAP, _HWCAP2 = 16, 26
_ARM_BITS = {"bf16": (_HWCAP2, 14), "dotprod": (_HWCAP, 20), "fullfp16": (_HWCAP, 10), "i8mm": (_HWCAP2, 13)}
# How Linux is asked for the length of SVE's vectors. Source: Linux, include/uapi/linux/prctl.h, and
# Documentation/arch/arm64/sve.rst.
_PR_SVE_GET_VL, _PR_SVE_VL_LEN_MASK = 51, 0xFFFF
# Names of architectures, as people, LLVM and Linux write them.
_ARCHITECTURES = {"x86-64": "x86_64", "x86_64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_BASELINE = {"x86_64": "x86-64", "aarch64": "generic"}


class Compression(NamedTuple):
    """Describe the instruction that moves lanes of a mask side by side: LLVM's name, and bits of its vectors."""

    instruction: str
    bits: int


class Machine(NamedTuple):
    """An instruction set: `architecture` as in target triples, `features` as LLVM names them, sorted."""

    architecture: str
    features: tuple[str, ...]

    @property
    def cpu(self) -> str:
        """LLVM's name of the baseline; all that lies above it is in `features`."""
        return _BASELINE.get(self.architecture, "generic")

    @property
    def feature_string(self) -> str:
        names = ("sve" if feature in _SVE_FEATURES else feature for feature in self.features)
        return ",".join(f"+{name}" for name in names)

    def __str__(self) -> str:
        """Return the highest x86-64 level that is part of it, and what it has besides."""
        present = set(self.features)
        reached = [level for level in LEVELS if present >= set(features_of_level(level))]
        name = reached[-1] if self.architecture == "x86_64" and reached else self.architecture
        rest = present - set(features_of_level(name)) if reached else present
        return f"{name} with {', '.join(sorted(rest))}" if rest else name

    @property
    def sve_bits(self) -> int:
        """Bits of SVE's vectors, exactly; 0 where it is not used."""
        return next((bits for name, bits in _SVE_FEATURES.items() if name in self.features), 0)

    @property
    def attributes(self) -> tuple[str, ...]:
        """Return LLVM's attributes of each function: by the exact length, it lowers vectors to SVE."""
        vscale = self.sve_bits // 128
        return (f"vscale_range({vscale},{vscale})",) if vscale else ()

    @property
    def vector_bits(self) -> int:
        if self.sve_bits:
            return self.sve_bits
        if "avx512f" in self.features and "avx512vl" in self.features:
            return 512
        return 256 if "avx2" in self.features else 128

    @property
    def compression(self) -> Compression | None:
        """None where vectors have no instruction that moves their lanes by a register."""
        if self.sve_bits:
            return Compression("sve.compact", self.sve_bits)
        instruction = {512: "vpcompress", 256: "vpermd"}.get(self.vector_bits)
        return Compression(instruction, self.vector_bits) if instruction else None

    @property
    def has_masks(self) -> bool:
        """Loads and stores of some lanes only cost no more than those of all."""
        return self.vector_bits == 512 or self.sve_bits > 0

    @property
    def has_fma(self) -> bool:
        return "fma" in self.features or self.architecture == "aarch64"

    @property
    def has_scale(self) -> bool:
        """Vectors are multiplied by powers of two by an instruction."""
        return self.vector_bits == 512 and self.architecture == "x86_64"

    @property
    def has_half(self) -> bool:
        """Half floats are converted by an instruction."""
        return "f16c" in self.features or self.architecture == "aarch64"

    @property
    def has_bfloat16(self) -> bool:
        """Products of bfloat16 are summed up by an instruction."""
        return "avx512bf16" in self.features or "bf16" in self.features

    @property
    def dot_instruction(self) -> str:
        """Instruction that adds products of unsigned and signed bytes to an int32: four, two of 16 bits, or none."""
        if not {"avx512vnni", "avxvnni"}.isdisjoint(self.features):
            return "vpdpbusd"
        if self.architecture == "x86_64":
            return "pmaddwd"
        if "i8mm" not in self.features:
            return ""
        return "sve.usdot" if self.sve_bits else "neon.usdot"

    @property
    def narrow_dot_instruction(self) -> str:
        """That of products whose sums of two have 16 bits: `pmaddubsw` cuts off what is larger."""
        return "pmaddubsw" if self.dot_instruction == "pmaddwd" and self.vector_bits == 256 else self.dot_instruction

    @property
    def vector_registers(self) -> int:
        return 32 if self.vector_bits == 512 or self.architecture == "aarch64" else 16


def features_of_level(level: str) -> tuple[str, ...]:
    """Return the features of an x86-64 level."""
    levels = LEVELS[: LEVELS.index(level) + 1]
    return tuple(sorted(feature for name in levels for feature in _LEVEL_FEATURES[name]))


@cache
def host_features() -> frozenset[str]:
    """Return the CPU features of this host, by LLVM's names."""
    if platform.machine() == "aarch64" and (words := _auxiliary_words()) is not None:
        told = [name for name, (word, bit) in _ARM_BITS.items() if words[word] >> bit & 1]
        return frozenset((*told, *(name for name, bits in _SVE_FEATURES.items() if bits == _sve_bits())))
    flags = cpu_facts().get("flags", "").split()
    if flags:  # LLVM knows them too, but loads much slower
        return frozenset(name for name in _KNOWN_FEATURES if _LINUX_NAMES.get(name, name.replace(".", "_")) in flags)
    import llvmlite.binding as llvm

    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


def _auxiliary_words() -> dict[int, int] | None:
    """Return the words of the auxiliary vector that tell an ARM CPU's features; None where libc has no `getauxval`."""
    try:
        getauxval = ctypes.CDLL(None).getauxval
    except (OSError, AttributeError):
        return None
    getauxval.argtypes, getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
    return {word: getauxval(word) for word in (_HWCAP, _HWCAP2)}


def _sve_bits() -> int:
    """Return the bits of this process's SVE vectors as Linux tells them; 0 where it has none."""
    nbytes = ctypes.CDLL(None).prctl(_PR_SVE_GET_VL, 0, 0, 0, 0)
    return 8 * (nbytes & _PR_SVE_VL_LEN_MASK) if nbytes > 0 else 0


@cache
def host_machine() -> Machine:
    """Return the CPU this runs on, without features that do not matter to kernels."""
    architecture = platform.machine()
    if architecture == "aarch64":
        relevant = {*_ARM_BITS, *_SVE_FEATURES}
    else:
        relevant = {*features_of_level(LEVELS[-1]), *_HOST_EXTRAS}
    return Machine(architecture, tuple(sorted(relevant & host_features())))


def architecture_of(mcpu: str | None, arch: str | None) -> str:
    """Return the architecture that a target means, as Linux calls it: `arch`, else that of `mcpu`, else of this host.

    Raises: TargetError.
    """
    if arch is None:
        return "x86_64" if mcpu in LEVELS else platform.machine()
    if arch not in _ARCHITECTURES:
        raise TargetError(
            f"native-cpu generates no code for the architecture {arch!r}",
            expected=", ".join(_ARCHITECTURES),
            hint="compile once for each architecture" if "," in arch else None,
        )
    return _ARCHITECTURES[arch]


def resolve_machine(mcpu: str | None, arch: str | None = None) -> Machine:
    """Return the machine of a target: without `mcpu` this CPU, or of another architecture the least one.

    Raises: TargetError for an architecture, or a CPU of it, that has no name here.
    """
    architecture = architecture_of(mcpu, arch)
    is_here = architecture == platform.machine()
    if mcpu in (None, "native") and is_here:
        return host_machine()
    known = LEVELS if architecture == "x86_64" else tuple(_ARM_FEATURES)
    name = mcpu or known[0]
    if name not in known:
        raise TargetError(
            f"native-cpu has no CPU called {mcpu!r} of {architecture}",
            expected=", ".join(("native", *known) if is_here else known),
            hint="name the oldest CPU that the program must run on; ARM CPUs have the arch aarch64",
        )
    return Machine(architecture, features_of_level(name) if architecture == "x86_64" else _ARM_FEATURES[name])


def check_host_runs(machine: Machine) -> None:
    """Nothing when this CPU can run code of that machine.

    Raises: BackendUnavailableError naming what is missing.
    """
    architecture = platform.machine()
    if architecture != machine.architecture:
        raise BackendUnavailableError(
            "these kernels were compiled for another architecture",
            where="native-cpu",
            found=architecture,
            expected=machine.architecture,
            hint=f'run them there, or compile the model with ky.Target("cpu", arch="{architecture}")',
        )
    missing = sorted(set(machine.features) - host_features())
    if missing:
        bits = 0 if _SVE_FEATURES.keys().isdisjoint(missing) else _sve_bits()
        length = f"; SVE's vectors have {bits} bits here" if bits else ""
        older = 'mcpu="x86-64-v3") or "x86-64-v2"' if architecture == "x86_64" else f'arch="{architecture}")'
        raise BackendUnavailableError(
            "these kernels were compiled for a CPU with features that this one lacks",
            where="native-cpu",
            found=f"no {', '.join(missing)}{length}",
            expected=str(machine),
            hint=f'compile the model for an older CPU: ky.Target("cpu", {older}',
        )
