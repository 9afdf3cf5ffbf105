"""The built-in around the dispatch loop, as LLVM code: NumPy arrays in, a table of native calls, NumPy arrays out.

`self` is the address of an entry: its head, its inputs, its outputs. Arguments that are not arrays of exactly these
types, shapes and the dense layout make it answer None, before anything has happened. An input with slots, which are at
least one after their number, is not copied: its address is written there. An output with slots is made before the run,
likewise; others after it. The structs of Python and NumPy are those of their C ABIs; `fast_call` makes sure of them
before it uses this.
"""

from __future__ import annotations

from kernelyard.runtime.abi.memory import REBIND_ALIGNMENT

ENTER_NAME = "kernelyard_enter"
RUN_TABLE_NAME = "kernelyard_run_table"  # the dispatch loop's

# The fields of each struct: their types in LLVM, and their names.
_STRUCTS = {
    "head": "i64 inputs, i64 outputs, ptr table, ptr fail",
    "input": "ptr descr, i64 nd, ptr dims, i64 nbytes, ptr buffer, ptr slots",
    "output": "ptr make, ptr slots",
    "object": "i64 references, ptr type",
    "array": "%object object, ptr data, i32 nd, ptr dims, ptr strides, ptr base, ptr descr, i32 flags",
}
_FIELDS = {struct: [field.split() for field in fields.split(", ")] for struct, fields in _STRUCTS.items()}
_TYPES_IR = "\n".join(f"%{name} = type {{ {', '.join(kind for kind, _ in _FIELDS[name])} }}" for name in _FIELDS)


def _read(value: str, field: str, address: str) -> str:
    """Read a field, `struct.name`, of the struct at an address."""
    struct, name = field.split(".")
    number, kind = next((n, kind) for n, (kind, each) in enumerate(_FIELDS[struct]) if each == name)
    return f"""%p_{value} = getelementptr %{struct}, ptr {address}, i64 0, i32 {number}
  %{value} = load {kind}, ptr %p_{value}"""


ENTER_IR = f"""
{_TYPES_IR}

@PyArray_Type = external global i8
@_Py_NoneStruct = external global i8
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyObject_CallObject(ptr, ptr)
declare ptr @PyObject_CallFunctionObjArgs(ptr, ...)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare i32 @memcmp(ptr, ptr, i64)
declare ptr @memcpy(ptr, ptr, i64)

define private void @write_slots(ptr %slots, ptr %data) {{
entry:
  %count = load i64, ptr %slots
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i_next, %next ]
  %i_next = add i64 %i, 1
  %p_slot = getelementptr ptr, ptr %slots, i64 %i_next
  %slot = load ptr, ptr %p_slot
  store ptr %data, ptr %slot
  %is_last = icmp eq i64 %i_next, %count
  br i1 %is_last, label %done, label %next
done:
  ret void
}}

define ptr @{ENTER_NAME}(ptr %self, ptr %args, i64 %given) {{
entry:
  %head = call ptr @PyLong_AsVoidPtr(ptr %self)
  %inputs = load i64, ptr %head
  {_read("outputs", "head.outputs", "%head")}
  {_read("table", "head.table", "%head")}
  %first_input = getelementptr %head, ptr %head, i64 1
  %first_output = getelementptr %input, ptr %first_input, i64 %inputs
  %as_many = icmp eq i64 %given, %inputs
  br i1 %as_many, label %check_next, label %decline

check_next:
  %i = phi i64 [ 0, %entry ], [ %i_next, %input_fits ]
  %all_checked = icmp eq i64 %i, %inputs
  br i1 %all_checked, label %copy_next, label %check
check:
  %input = getelementptr %input, ptr %first_input, i64 %i
  %p_arg = getelementptr ptr, ptr %args, i64 %i
  %arg = load ptr, ptr %p_arg
  {_read("type", "object.type", "%arg")}
  %is_array = icmp eq ptr %type, @PyArray_Type
  br i1 %is_array, label %array, label %decline
array:
  {_read("descr", "array.descr", "%arg")}
  %wanted_descr = load ptr, ptr %input
  %same_descr = icmp eq ptr %descr, %wanted_descr
  {_read("nd", "array.nd", "%arg")}
  %rank = sext i32 %nd to i64
  {_read("wanted_rank", "input.nd", "%input")}
  %same_rank = icmp eq i64 %rank, %wanted_rank
  {_read("flags", "array.flags", "%arg")}
  %c_contiguous = trunc i32 %flags to i1
  %fits_0 = and i1 %same_descr, %same_rank
  %fits_1 = and i1 %fits_0, %c_contiguous
  br i1 %fits_1, label %compare, label %decline
compare:
  {_read("dims", "array.dims", "%arg")}
  {_read("wanted_dims", "input.dims", "%input")}
  %dims_size = shl i64 %rank, 3
  %difference = call i32 @memcmp(ptr %dims, ptr %wanted_dims, i64 %dims_size)
  %same_dims = icmp eq i32 %difference, 0
  br i1 %same_dims, label %dims_fit, label %decline
dims_fit:
  {_read("checked_slots", "input.slots", "%input")}
  %is_copied = icmp eq ptr %checked_slots, null
  %p_place = getelementptr %array, ptr %arg, i64 0, i32 1
  %place = load i64, ptr %p_place
  %below = and i64 %place, {REBIND_ALIGNMENT - 1}
  %is_aligned = icmp eq i64 %below, 0
  %has_place = or i1 %is_copied, %is_aligned
  br i1 %has_place, label %input_fits, label %decline
input_fits:
  %i_next = add i64 %i, 1
  br label %check_next

copy_next:
  %j = phi i64 [ 0, %check_next ], [ %j_next, %taken ]
  %all_copied = icmp eq i64 %j, %inputs
  br i1 %all_copied, label %prepare, label %take
take:
  %source = getelementptr %input, ptr %first_input, i64 %j
  %p_source_arg = getelementptr ptr, ptr %args, i64 %j
  %source_arg = load ptr, ptr %p_source_arg
  {_read("data", "array.data", "%source_arg")}
  {_read("slots", "input.slots", "%source")}
  %has_slots = icmp ne ptr %slots, null
  br i1 %has_slots, label %move, label %copy
move:
  call void @write_slots(ptr %slots, ptr %data)
  br label %taken
copy:
  {_read("nbytes", "input.nbytes", "%source")}
  {_read("buffer", "input.buffer", "%source")}
  %copied = call ptr @memcpy(ptr %buffer, ptr %data, i64 %nbytes)
  br label %taken
taken:
  %j_next = add i64 %j, 1
  br label %copy_next

prepare:
  %early = alloca ptr, i64 %outputs ; arrays of outputs with slots, null for the others
  br label %early_next
early_next:
  %l = phi i64 [ 0, %prepare ], [ %l_next, %early_done ]
  %all_early = icmp eq i64 %l, %outputs
  br i1 %all_early, label %run, label %early_one
early_one:
  %p_early = getelementptr ptr, ptr %early, i64 %l
  store ptr null, ptr %p_early
  %early_output = getelementptr %output, ptr %first_output, i64 %l
  {_read("early_slots", "output.slots", "%early_output")}
  %is_later = icmp eq ptr %early_slots, null
  br i1 %is_later, label %early_done, label %early_make
early_make:
  %early_function = load ptr, ptr %early_output
  %early_array = call ptr @PyObject_CallObject(ptr %early_function, ptr null)
  %no_array = icmp eq ptr %early_array, null
  br i1 %no_array, label %release, label %early_place
early_place:
  store ptr %early_array, ptr %p_early
  {_read("early_data", "array.data", "%early_array")}
  call void @write_slots(ptr %early_slots, ptr %early_data)
  br label %early_done
early_done:
  %l_next = add i64 %l, 1
  br label %early_next

run:
  %thread = call ptr @PyEval_SaveThread()
  %answer = call i64 @{RUN_TABLE_NAME}(ptr %table)
  call void @PyEval_RestoreThread(ptr %thread)
  %success = icmp eq i64 %answer, 0
  br i1 %success, label %succeed, label %fail
fail:
  %p_fail = getelementptr %head, ptr %head, i64 0, i32 3
  %fail_function = load ptr, ptr %p_fail
  %number = call ptr @PyLong_FromLongLong(i64 %answer)
  %raised = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %fail_function, ptr %number, ptr null)
  call void @Py_DecRef(ptr %number)
  br label %release

succeed:
  %results = call ptr @PyTuple_New(i64 %outputs)
  %no_results = icmp eq ptr %results, null
  br i1 %no_results, label %release, label %result_next
result_next:
  %k = phi i64 [ 0, %succeed ], [ %k_next, %put ]
  %all_made = icmp eq i64 %k, %outputs
  br i1 %all_made, label %done, label %find
find:
  %p_made = getelementptr ptr, ptr %early, i64 %k
  %made = load ptr, ptr %p_made
  store ptr null, ptr %p_made
  %is_made = icmp ne ptr %made, null
  br i1 %is_made, label %put, label %make
make:
  %output = getelementptr %output, ptr %first_output, i64 %k
  %function = load ptr, ptr %output
  %copy_made = call ptr @PyObject_CallObject(ptr %function, ptr null)
  %no_result = icmp eq ptr %copy_made, null
  br i1 %no_result, label %drop, label %put
put:
  %result = phi ptr [ %made, %find ], [ %copy_made, %make ]
  %was_put = call i32 @PyTuple_SetItem(ptr %results, i64 %k, ptr %result)
  %k_next = add i64 %k, 1
  br label %result_next
done:
  ret ptr %results

drop:
  call void @Py_DecRef(ptr %results)
  br label %release
release:
  %released = phi i64 [ %l, %early_make ], [ %outputs, %fail ], [ %outputs, %succeed ], [ %outputs, %drop ]
  br label %release_next
release_next:
  %m = phi i64 [ 0, %release ], [ %m_next, %release_one ]
  %all_released = icmp eq i64 %m, %released
  br i1 %all_released, label %failed, label %release_one
release_one:
  %p_released = getelementptr ptr, ptr %early, i64 %m
  %unused = load ptr, ptr %p_released
  call void @Py_DecRef(ptr %unused) ; none where it is null
  %m_next = add i64 %m, 1
  br label %release_next
failed:
  ret ptr null

decline:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
}}
"""
