"""The interface between the runtime and modules of backends: RuntimeModule, specs of tensors, sizes, host memory."""
