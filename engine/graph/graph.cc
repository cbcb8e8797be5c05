#include "engine/graph/graph.h"

#include "common/check.h"

namespace milepost::graph {

int64_t ByteSize(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kU8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return 1;
  }
  MP_CHECK(false) << "unknown dtype " << static_cast<int>(dtype);
  return 0;
}

const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kF64:
      return "F64";
    case DType::kI32:
      return "I32";
    case DType::kU8:
      return "U8";
    case DType::kI64:
      return "I64";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kF8E5M2:
      return "F8_E5M2";
  }
  return "unknown";
}

int64_t Elements(const Shape& shape) {
  int64_t elements = 1;
  for (int64_t dimension : shape) elements *= dimension;
  return elements;
}

const char* Name(OpKind kind) {
  switch (kind) {
#define MP_OP(kind, name) \
  case OpKind::k##kind:   \
    return name;
#include "engine/graph/op_kinds.inc"
#undef MP_OP
  }
  return "unknown";
}

ValueId Graph::Input(absl::string_view name) const {
  for (const ValueId input : inputs) {
    if (values[input].name == name) return input;
  }
  return kNoValue;
}

}  // namespace milepost::graph
