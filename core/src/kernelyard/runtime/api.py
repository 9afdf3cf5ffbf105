"""Import from here what the runtime half of a plugin needs; imports nothing of the compiler.

API 2: docs/compatibility.md. Names are loaded when they are first used, since artifacts are to load quickly.

Example:
    >>> from kernelyard.runtime.api import BoundCall, JSONRuntime
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.lazy import lazy_names

if TYPE_CHECKING:
    from kernelyard.cached_property import cached_property as cached_property
    from kernelyard.collector import collector_paused as collector_paused
    from kernelyard.records import NamedTuple as NamedTuple
    from kernelyard.records import record as record
    from kernelyard.runtime.abi.forks import renewed_in_children as renewed_in_children
    from kernelyard.runtime.abi.memory import ALIGNMENT as ALIGNMENT
    from kernelyard.runtime.abi.memory import REBIND_ALIGNMENT as REBIND_ALIGNMENT
    from kernelyard.runtime.abi.memory import address_of as address_of
    from kernelyard.runtime.abi.memory import align as align
    from kernelyard.runtime.abi.memory import aligned_bytes as aligned_bytes
    from kernelyard.runtime.abi.memory import aligned_copy as aligned_copy
    from kernelyard.runtime.abi.memory import aligned_empty as aligned_empty
    from kernelyard.runtime.abi.memory import give_back_pages as give_back_pages
    from kernelyard.runtime.abi.memory import nbytes_of as nbytes_of
    from kernelyard.runtime.abi.module import DEFAULT_MAX_PLANS as DEFAULT_MAX_PLANS
    from kernelyard.runtime.abi.module import BindContext as BindContext
    from kernelyard.runtime.abi.module import BoundCall as BoundCall
    from kernelyard.runtime.abi.module import BoundTensor as BoundTensor
    from kernelyard.runtime.abi.module import NativeCall as NativeCall
    from kernelyard.runtime.abi.module import NativeKernel as NativeKernel
    from kernelyard.runtime.abi.module import Part as Part
    from kernelyard.runtime.abi.module import RuntimeModule as RuntimeModule
    from kernelyard.runtime.abi.module import Step as Step
    from kernelyard.runtime.abi.module import array_at as array_at
    from kernelyard.runtime.abi.native_unit import WRONG_CPU as WRONG_CPU
    from kernelyard.runtime.abi.native_unit import Header as Header
    from kernelyard.runtime.abi.native_unit import NativeFunction as NativeFunction
    from kernelyard.runtime.abi.native_unit import NativeUnit as NativeUnit
    from kernelyard.runtime.abi.native_unit import SharedLibrary as SharedLibrary
    from kernelyard.runtime.abi.native_unit import c_name as c_name
    from kernelyard.runtime.abi.solve_symbols import DimValues as DimValues
    from kernelyard.runtime.abi.solve_symbols import solve_symbols as solve_symbols
    from kernelyard.runtime.abi.spec import Fields as Fields
    from kernelyard.runtime.abi.spec import Signature as Signature
    from kernelyard.runtime.abi.spec import TensorSpec as TensorSpec
    from kernelyard.runtime.abi.spec import corrupted as corrupted
    from kernelyard.runtime.abi.spec import read_dim as read_dim
    from kernelyard.runtime.abi.spec import read_json as read_json
    from kernelyard.runtime.abi.spec import write_json as write_json
    from kernelyard.runtime.abi.threads import processors as processors
    from kernelyard.runtime.artifact.elf import find_section as find_section
    from kernelyard.runtime.device.array import DeviceArray as DeviceArray
    from kernelyard.runtime.device.device import Device as Device
    from kernelyard.runtime.device.dlpack import DLPACK_CPU as DLPACK_CPU
    from kernelyard.runtime.device.driver import DeviceDriver as DeviceDriver
    from kernelyard.runtime.device.driver import DeviceMemory as DeviceMemory
    from kernelyard.runtime.device.tensor import Tensor as Tensor
    from kernelyard.runtime.device.tensor import as_array as as_array
    from kernelyard.runtime.execute.executable import Executable as Executable
    from kernelyard.runtime.execute.executable import TensorInfo as TensorInfo
    from kernelyard.runtime.export import get_include as get_include
    from kernelyard.runtime.installed.compiler_facts import compiler_facts as compiler_facts
    from kernelyard.runtime.installed.disk_cache import DiskCache as DiskCache
    from kernelyard.runtime.installed.distributions import find_distribution as find_distribution
    from kernelyard.runtime.installed.distributions import list_source_files as list_source_files
    from kernelyard.runtime.installed.plugin_cache import plugin_cache as plugin_cache
    from kernelyard.runtime.installed.processor import cpu_facts as cpu_facts
    from kernelyard.runtime.installed.processor import cpu_flags as cpu_flags
    from kernelyard.runtime.jit.linking import Code as Code
    from kernelyard.runtime.jit.linking import compile_text as compile_text
    from kernelyard.runtime.jit.linking import link as link
    from kernelyard.runtime.jit.shared_pool import share_thread_pool as share_thread_pool
    from kernelyard.runtime.jit.thread_pool import ALONE_IF_ASLEEP as ALONE_IF_ASLEEP
    from kernelyard.runtime.jit.thread_pool import thread_pool as thread_pool
    from kernelyard.runtime.jit.toolchain import Toolchain as Toolchain
    from kernelyard.runtime.lru import LRU as LRU
    from kernelyard.runtime.lru import CacheInfo as CacheInfo
    from kernelyard.runtime.lru import sum_infos as sum_infos
    from kernelyard.runtime.modules.bindable import BindableModule as BindableModule
    from kernelyard.runtime.modules.c_kernel_runtime import CKernel as CKernel
    from kernelyard.runtime.modules.c_kernel_runtime import CKernelRuntime as CKernelRuntime
    from kernelyard.runtime.modules.extern_library import PREFIX as PREFIX
    from kernelyard.runtime.modules.extern_library import SYMBOL as SYMBOL
    from kernelyard.runtime.modules.extern_library import ExternLibrary as ExternLibrary
    from kernelyard.runtime.modules.json_runtime import JSONGraph as JSONGraph
    from kernelyard.runtime.modules.json_runtime import JSONNode as JSONNode
    from kernelyard.runtime.modules.json_runtime import JSONRuntime as JSONRuntime
    from kernelyard.runtime.modules.json_runtime import NodeEntry as NodeEntry
    from kernelyard.runtime.modules.json_runtime import check_schema as check_schema
    from kernelyard.runtime.modules.packed_module import pack_module as pack_module
    from kernelyard.runtime.modules.packed_module import split_code as split_code
    from kernelyard.runtime.modules.packed_module import unpack_module as unpack_module
    from kernelyard.runtime.program.memory_plan import Lifetime as Lifetime
    from kernelyard.runtime.program.memory_plan import MemoryPlanner as MemoryPlanner
    from kernelyard.runtime.program.memory_plan import plan_memory as plan_memory
    from kernelyard.variables import EnvironmentVariable as EnvironmentVariable


_HOME = {
    "kernelyard.cached_property": "cached_property",
    "kernelyard.collector": "collector_paused",
    "kernelyard.records": "NamedTuple record",
    "kernelyard.variables": "EnvironmentVariable",
    "kernelyard.runtime.abi.forks": "renewed_in_children",
    "kernelyard.runtime.abi.memory": "ALIGNMENT REBIND_ALIGNMENT address_of align "
    "aligned_bytes aligned_copy aligned_empty give_back_pages nbytes_of",
    "kernelyard.runtime.abi.module": "BindContext BoundCall BoundTensor DEFAULT_MAX_PLANS NativeCall NativeKernel Part "
    "RuntimeModule Step array_at",
    "kernelyard.runtime.abi.native_unit": "Header NativeFunction NativeUnit SharedLibrary WRONG_CPU c_name",
    "kernelyard.runtime.abi.solve_symbols": "DimValues solve_symbols",
    "kernelyard.runtime.abi.spec": "Fields Signature TensorSpec corrupted read_dim read_json write_json",
    "kernelyard.runtime.abi.threads": "processors",
    "kernelyard.runtime.artifact.elf": "find_section",
    "kernelyard.runtime.device.array": "DeviceArray",
    "kernelyard.runtime.device.device": "Device",
    "kernelyard.runtime.device.dlpack": "DLPACK_CPU",
    "kernelyard.runtime.device.driver": "DeviceDriver DeviceMemory",
    "kernelyard.runtime.device.tensor": "Tensor as_array",
    "kernelyard.runtime.execute.executable": "Executable TensorInfo",
    "kernelyard.runtime.export": "get_include",
    "kernelyard.runtime.installed.compiler_facts": "compiler_facts",
    "kernelyard.runtime.installed.disk_cache": "DiskCache",
    "kernelyard.runtime.installed.distributions": "find_distribution list_source_files",
    "kernelyard.runtime.installed.plugin_cache": "plugin_cache",
    "kernelyard.runtime.installed.processor": "cpu_facts cpu_flags",
    "kernelyard.runtime.jit.linking": "Code compile_text link",
    "kernelyard.runtime.jit.shared_pool": "share_thread_pool",
    "kernelyard.runtime.jit.thread_pool": "ALONE_IF_ASLEEP thread_pool",
    "kernelyard.runtime.jit.toolchain": "Toolchain",
    "kernelyard.runtime.lru": "CacheInfo LRU sum_infos",
    "kernelyard.runtime.modules.bindable": "BindableModule",
    "kernelyard.runtime.modules.c_kernel_runtime": "CKernel CKernelRuntime",
    "kernelyard.runtime.modules.extern_library": "ExternLibrary PREFIX SYMBOL",
    "kernelyard.runtime.modules.json_runtime": "JSONGraph JSONNode JSONRuntime NodeEntry check_schema",
    "kernelyard.runtime.modules.packed_module": "pack_module split_code unpack_module",
    "kernelyard.runtime.program.memory_plan": "Lifetime MemoryPlanner plan_memory",
}

__getattr__ = lazy_names(__name__, _HOME, is_all=True)
