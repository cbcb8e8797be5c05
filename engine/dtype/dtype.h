// The types of a tensor's elements, everywhere: in graphs, plans, kernels, checkpoints.
//
//   DType dtype = DType::kBf16;
//   ByteSize(dtype);   // 2
//   Name(dtype);       // "BF16"
//
// Pure and thread-safe. Their C++ types: half.h, fp8.h.
#ifndef MILEPOST_ENGINE_DTYPE_DTYPE_H_
#define MILEPOST_ENGINE_DTYPE_DTYPE_H_

#include <cstdint>

namespace milepost {

enum class DType : uint8_t { kF32, kBf16, kF16, kF64, kI32, kU8, kI64, kE4M3, kE5M2 };

constexpr bool IsFp8(DType dtype) { return dtype == DType::kE4M3 || dtype == DType::kE5M2; }

constexpr int64_t ByteSize(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBf16:
    case DType::kF16:
      return 2;
    case DType::kU8:
    case DType::kE4M3:
    case DType::kE5M2:
      return 1;
  }
  return 0;
}

// safetensors' names: "F32", "BF16", "F16", "F64", "I32", "U8", "I64", "F8_E4M3", "F8_E5M2".
constexpr const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBf16:
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
    case DType::kE4M3:
      return "F8_E4M3";
    case DType::kE5M2:
      return "F8_E5M2";
  }
  return "unknown";
}

}  // namespace milepost

#endif  // MILEPOST_ENGINE_DTYPE_DTYPE_H_
