/* The element type of a tensor under the name that code written for TVM uses; DLPack's DLDataType with questions. */
#ifndef TVM_RUNTIME_DATA_TYPE_H_
#define TVM_RUNTIME_DATA_TYPE_H_

#include <dlpack/dlpack.h>

namespace tvm {
namespace runtime {

class DataType {
 public:
  DataType() : type_{kDLOpaqueHandle, 0, 0} {}
  DataType(DLDataType type) : type_(type) {}
  DataType(int code, int bits, int lanes)
      : type_{static_cast<uint8_t>(code), static_cast<uint8_t>(bits), static_cast<uint16_t>(lanes)} {}

  static DataType Int(int bits, int lanes = 1) { return DataType(kDLInt, bits, lanes); }
  static DataType UInt(int bits, int lanes = 1) { return DataType(kDLUInt, bits, lanes); }
  static DataType Float(int bits, int lanes = 1) { return DataType(kDLFloat, bits, lanes); }
  static DataType BFloat(int bits, int lanes = 1) { return DataType(kDLBfloat, bits, lanes); }

  int code() const { return type_.code; }
  int bits() const { return type_.bits; }
  int lanes() const { return type_.lanes; }
  int bytes() const { return (bits() + 7) / 8; }
  bool is_scalar() const { return lanes() == 1; }
  bool is_float() const { return code() == kDLFloat; }
  bool is_bfloat16() const { return code() == kDLBfloat && bits() == 16; }
  bool is_int() const { return code() == kDLInt; }
  bool is_uint() const { return code() == kDLUInt; }

  operator DLDataType() const { return type_; }
  bool operator==(const DataType& other) const {
    return code() == other.code() && bits() == other.bits() && lanes() == other.lanes();
  }
  bool operator!=(const DataType& other) const { return !(*this == other); }

 private:
  DLDataType type_;
};

}  // namespace runtime
}  // namespace tvm

#endif
