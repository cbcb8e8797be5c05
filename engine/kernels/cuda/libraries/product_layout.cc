#include "engine/kernels/cuda/libraries/product_layout.h"

#include "absl/strings/str_cat.h"

namespace milepost::kernels::cuda {
namespace {

// Of keys, which are stored with jobs: they stay as they are.
const char* KeyName(DType type) {
  switch (type) {
    case DType::kF32:
      return "f32";
    case DType::kBf16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kE4M3:
      return "e4m3";
    case DType::kE5M2:
      return "e5m2";
    default:
      return "unknown";
  }
}

// Elements from row to row of a stored row-major matrix `width` wide.
int64_t RowOf(int64_t given, int64_t width) { return given > 0 ? given : width; }

absl::Status Refuse(const Product& product, const char* why) {
  return absl::InvalidArgumentError(
      absl::StrCat("the matrix product ", ProductKey(product), ": ", why));
}

absl::Status CheckEpilogue(const Product& product) {
  const MatmulSpec& s = product.spec;
  if (product.epilogue == Epilogue::kNone) return absl::OkStatus();
  if (s.c == DType::kF32) return Refuse(product, "GELU is fused into 16-bit results only");
  if (s.accumulate) return Refuse(product, "GELU is not fused into a product that accumulates");
  if (s.n % 8 != 0) return Refuse(product, "GELU is fused into rows of a multiple of 8 only");
  if (product.epilogue == Epilogue::kGeluBackward && s.bias) {
    return Refuse(product, "GELU's gradient takes no bias");
  }
  return absl::OkStatus();
}

// What Hopper's kernels take: both operands with the summed index innermost, all in multiples
// of 16.
absl::Status CheckFp8(const Product& product) {
  const MatmulSpec& s = product.spec;
  if (!IsFp8(s.a) || !IsFp8(s.b) || (s.a == DType::kE5M2 && s.b == DType::kE5M2)) {
    return Refuse(product, "8-bit operands are e4m3, or e4m3 and e5m2");
  }
  if (s.c != DType::kF32 && s.c != DType::kBf16) {
    return Refuse(product, "the result of 8-bit operands is fp32 or bf16");
  }
  if (s.transpose_a || !s.transpose_b) {
    return Refuse(product, "8-bit operands have the summed index innermost");
  }
  if (s.m % 16 != 0 || s.n % 16 != 0 || s.k % 16 != 0 || s.a_row % 16 != 0 || s.c_row % 16 != 0) {
    return Refuse(product, "the sizes of 8-bit operands are multiples of 16");
  }
  if (product.alignment != 16 || product.epilogue != Epilogue::kNone) {
    return Refuse(product, "8-bit operands are aligned to 16 bytes and have no epilogue");
  }
  return absl::OkStatus();
}

absl::Status CheckTypes(const Product& product) {
  const MatmulSpec& s = product.spec;
  if (IsFp8(s.a) || IsFp8(s.b)) return CheckFp8(product);
  if (s.a != s.b) return Refuse(product, "both operands must have one type");
  if (s.c != DType::kF32 && s.c != s.a) {
    return Refuse(product, "the result must be fp32 or of the operands' type");
  }
  return absl::OkStatus();
}

absl::Status Check(const Product& product) {
  const MatmulSpec& s = product.spec;
  if (s.m <= 0 || s.n <= 0 || s.k <= 0) return Refuse(product, "sizes must be positive");
  if (s.packed_b) return Refuse(product, "packed weights are the CPU's");
  const absl::Status types = CheckTypes(product);
  if (!types.ok()) return types;
  if (s.bias && s.bias_type != s.c) return Refuse(product, "the bias must be of the result's type");
  if (s.a_row != 0 && s.a_row < (s.transpose_a ? s.m : s.k)) {
    return Refuse(product, "A's rows overlap");
  }
  if (s.b_row != 0 && s.b_row < (s.transpose_b ? s.k : s.n)) {
    return Refuse(product, "B's rows overlap");
  }
  if (s.c_row != 0 && s.c_row < s.n) return Refuse(product, "C's rows overlap");
  if (product.alignment != 16 && product.alignment != static_cast<int>(ByteSize(s.a))) {
    return Refuse(product, "operands are aligned to 16 bytes or to elements");
  }
  return CheckEpilogue(product);
}

}  // namespace

absl::StatusOr<ColumnMajorProduct> LayoutOf(const Product& product) {
  const absl::Status status = Check(product);
  if (!status.ok()) return status;
  const MatmulSpec& s = product.spec;
  // Stored: A [m,k] or [k,m], B [k,n] or [n,k], rows by columns.
  const int64_t a_rows = s.transpose_a ? s.k : s.m, a_columns = s.transpose_a ? s.m : s.k;
  const int64_t b_rows = s.transpose_b ? s.n : s.k, b_columns = s.transpose_b ? s.k : s.n;
  return ColumnMajorProduct{
      .m = s.n,
      .n = s.m,
      .k = s.k,
      .transpose_first = s.transpose_b,
      .transpose_second = s.transpose_a,
      .first = {.rows = b_columns, .columns = b_rows, .stride = RowOf(s.b_row, b_columns)},
      .second = {.rows = a_columns, .columns = a_rows, .stride = RowOf(s.a_row, a_columns)},
      .result = {.rows = s.n, .columns = s.m, .stride = RowOf(s.c_row, s.n)},
      .aux_stride = HasAux(product.epilogue) ? s.n : 0,
      .beta = s.accumulate ? 1.0f : 0.0f};
}

bool Aligned(const Product& product, const ColumnMajorProduct& layout) {
  const int64_t in = 16 / ByteSize(product.spec.a);
  const int64_t out = 16 / ByteSize(product.spec.c);
  return layout.first.stride % in == 0 && layout.second.stride % in == 0 &&
         layout.result.stride % out == 0;
}

std::string ProductKey(const Product& product) {
  const MatmulSpec& s = product.spec;
  return absl::StrCat("m=", s.m, " n=", s.n, " k=", s.k, " ta=", s.transpose_a ? 1 : 0,
                      " tb=", s.transpose_b ? 1 : 0, " in=", KeyName(s.a), s.b == s.a ? "" : "x",
                      s.b == s.a ? "" : KeyName(s.b), " out=", KeyName(s.c),
                      " bias=", s.bias ? KeyName(s.bias_type) : "no", " add=", s.accumulate ? 1 : 0,
                      " ar=", RowOf(s.a_row, s.transpose_a ? s.m : s.k),
                      s.b_row > 0 ? absl::StrCat(" br=", s.b_row) : "",  // not in older keys
                      " cr=", RowOf(s.c_row, s.n), " ep=", static_cast<int>(product.epilogue),
                      product.alignment == 16 ? "" : " unaligned");
}

}  // namespace milepost::kernels::cuda
