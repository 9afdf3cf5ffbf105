"""Sessions and values, from where older programs import them."""

from kernelyard_ort_compat.session import InferenceSession as InferenceSession
from kernelyard_ort_compat.values import IOBinding as IOBinding
from kernelyard_ort_compat.values import OrtDevice as OrtDevice
from kernelyard_ort_compat.values import OrtValue as OrtValue
