#include "engine/ops/convolution/convolution_widened_cpu_kernel.h"

#include <algorithm>

#include "common/status_macros.h"
#include "engine/kernels/cpu/elementwise.h"

namespace milepost::kernels {
namespace {

constexpr int64_t kPieceElements = 2 << 20;  // of input and output

size_t FloatBytes(int64_t elements) { return (elements * sizeof(float) + 63) / 64 * 64; }

}  // namespace

struct WidenedConvolution::Scratch {
  float* x;
  float* y;
  float* w;
  char* convolution;
  size_t bytes;  // before `convolution`
};

int64_t WidenedConvolution::ImagesAtOnce() const {
  const int64_t fitting = kPieceElements / (InputElements() + OutputElements());
  return std::clamp<int64_t>(fitting, 1, spec_.batch);
}

WidenedConvolution::Scratch WidenedConvolution::Carve(void* workspace) const {
  Scratch scratch = {};
  const auto at = [&]() {  // null: asked for the bytes alone
    return workspace == nullptr ? nullptr : static_cast<char*>(workspace) + scratch.bytes;
  };
  const auto take = [&](int64_t elements) {
    char* const begin = at();
    scratch.bytes += FloatBytes(elements);
    return reinterpret_cast<float*>(begin);
  };
  scratch.x = take(ImagesAtOnce() * InputElements());
  scratch.y = take(ImagesAtOnce() * OutputElements());
  scratch.w = take(spec_.WeightElements());
  scratch.convolution = at();
  return scratch;
}

template <typename Visit>
absl::Status WidenedConvolution::ForEachPiece(const Visit& visit) const {
  ConvolutionSpec piece = spec_;
  piece.type = DType::kF32;
  for (int64_t first = 0; first < spec_.batch; first += piece.batch) {
    piece.batch = std::min(ImagesAtOnce(), spec_.batch - first);
    MP_RETURN_IF_ERROR(visit(first, piece));
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> WidenedConvolution::WorkspaceBytes(ConvolutionPass pass) const {
  size_t bytes = 0;
  MP_RETURN_IF_ERROR(ForEachPiece([&](int64_t, const ConvolutionSpec& piece) -> absl::Status {
    MP_ASSIGN_OR_RETURN(const size_t needed, cache_.WorkspaceBytes(piece, pass));
    bytes = std::max(bytes, needed);
    return absl::OkStatus();
  }));
  return Carve(nullptr).bytes + bytes;
}

absl::Status WidenedConvolution::Forward(const bf16* x, const bf16* w, bf16* y,
                                         void* workspace) const {
  const Scratch scratch = Carve(workspace);
  CastToFloat(w, spec_.WeightElements(), scratch.w);
  return ForEachPiece([&](int64_t first, const ConvolutionSpec& piece) -> absl::Status {
    CastToFloat(x + first * InputElements(), piece.batch * InputElements(), scratch.x);
    MP_RETURN_IF_ERROR(cache_.Forward(piece, scratch.x, scratch.w, scratch.y, scratch.convolution));
    CastToBf16(scratch.y, piece.batch * OutputElements(), y + first * OutputElements());
    return absl::OkStatus();
  });
}

absl::Status WidenedConvolution::BackwardData(const bf16* dy, const bf16* w, bf16* dx,
                                              void* workspace) const {
  const Scratch scratch = Carve(workspace);
  CastToFloat(w, spec_.WeightElements(), scratch.w);
  return ForEachPiece([&](int64_t first, const ConvolutionSpec& piece) -> absl::Status {
    CastToFloat(dy + first * OutputElements(), piece.batch * OutputElements(), scratch.y);
    MP_RETURN_IF_ERROR(
        cache_.BackwardData(piece, scratch.y, scratch.w, scratch.x, scratch.convolution));
    CastToBf16(scratch.x, piece.batch * InputElements(), dx + first * InputElements());
    return absl::OkStatus();
  });
}

absl::Status WidenedConvolution::BackwardWeights(const bf16* x, const bf16* dy, bool accumulate,
                                                 float* dw, void* workspace) const {
  const Scratch scratch = Carve(workspace);
  return ForEachPiece([&](int64_t first, const ConvolutionSpec& piece) -> absl::Status {
    CastToFloat(x + first * InputElements(), piece.batch * InputElements(), scratch.x);
    CastToFloat(dy + first * OutputElements(), piece.batch * OutputElements(), scratch.y);
    return cache_.BackwardWeights(piece, scratch.x, scratch.y, accumulate || first > 0, dw,
                                  scratch.convolution);
  });
}

}  // namespace milepost::kernels
